"""The reason for a run's or job's current state, as data: a code for programs, a sentence for users, and the holders.

Every rule that can keep a run from running reports it in this form. A rule such as a limit or a dependency builds its
``Reason``, and the code that collects the facts about a run adds it to ``Facts.also``. ``explain`` lists these reasons
first, and includes their ``until`` in the estimated start. A rule that skips ticks writes its reason into the ledger as
text, and ``explain_tick`` shows that text.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from mainspring.core.model.base.instant import Instant


class Holder(msgspec.Struct, frozen=True):
    """The holder of a resource that a run waits for."""

    kind: Literal["run", "worker", "scheduler", "job", "tenant", "queue", "key", "budget"]
    id: str


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    #: One word in lower case with hyphens. It is stable even if the sentence is reworded.
    code: str
    #: A sentence without a capital letter and a full stop.
    words: str
    #: What the user can do about it; empty: nothing.
    hint: str = ""
    holders: tuple[Holder, ...] = ()
    #: When this reason ends by itself, if known.
    until: Instant | None = None


def over_at(reasons: Sequence[Reason]) -> Instant | None:
    """Return when all reasons have ended; None: unknown."""
    ends = [reason.until for reason in reasons]
    return max((end for end in ends if end is not None), default=None) if None not in ends else None
