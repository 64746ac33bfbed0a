"""Judges the history of a cluster: was anything lost, done twice, too early, or not at all?

    python -m tools.judge history.jsonl

It imports nothing of the product and believes no statement of the product about itself if another source has it,
too. A history is a file with one JSON object a line, in any order; times are microseconds since 1970:

    {"kind": "acknowledged", "run", "at", "key", "effect"}    the submitter received a positive answer
    {"kind": "started", "run", "fence", "at", "due", "key"}   a handler began; written by itself, outside the store
    {"kind": "ended", "run", "state", "fence", "session", "at", "due", "started", "job", "tick"}    as the store has it
    {"kind": "given up", "run", "fence"}                an attempt that came to nothing, as of a lost worker
    {"kind": "left", "run", "state", "job", "tick"}     not ended when everything should have
    {"kind": "effect", "run"}                           what a handler wrote in the transaction that ended its run
    {"kind": "expected", "job", "first", "last", "every"}    the ticks that a recurring job must have
    {"kind": "tick", "job", "tick", "decision", "run", "epoch"}    a row of the ledger
    {"kind": "fault", "name", "at"}                     something was broken on purpose

Each kind of violation has a name, and each name has a test with a history that was broken by hand.
"""

from tools.judge.history import History, read
from tools.judge.rules import Judgement, judge

__all__ = ["History", "Judgement", "judge", "read"]
