"""One reason why something is where it is, as data: a word for programs, a sentence for people, who is to blame.

Whatever can keep a run from running says so in this form. A rule that holds runs back (a limit, a dependency) makes its
``Reason`` beside its other functions, and whoever gathers the facts about a run puts it into ``Facts.also``:
``explain`` tells it before everything else, and counts its ``until`` when it says when the run can start.
A rule that skips ticks writes its reason into the ledger in plain words; ``explain_tick`` tells them.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from mainspring.core.model.base.instant import Instant


class Holder(msgspec.Struct, frozen=True):
    """Who holds what is waited for."""

    kind: Literal["run", "worker", "scheduler", "job", "tenant", "queue", "key", "budget"]
    id: str


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    #: One word, in lower case with hyphens. It stays the same when the sentence is worded anew.
    code: str
    #: A sentence without a capital letter and a full stop.
    words: str
    #: What would help, if somebody can do something about it.
    hint: str = ""
    holders: tuple[Holder, ...] = ()
    #: When this reason is over by itself, if that is known.
    until: Instant | None = None


def over_at(reasons: Sequence[Reason]) -> Instant | None:
    """When nothing of this holds any more; None: nobody can say."""
    ends = [reason.until for reason in reasons]
    return max((end for end in ends if end is not None), default=None) if None not in ends else None
