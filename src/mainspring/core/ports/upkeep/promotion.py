"""What is told of a standby that was promoted."""

import msgspec

from mainspring.core.model.base.instant import Instant, Micros

#: What the audit calls it.
PROMOTED = "store.promote"


class Promoted(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    address: str
    #: The last commit of the old primary that is here; None: there was none to see.
    last_commit: Instant | None
    #: How long it took until this server wrote.
    took: Micros
    #: Part of every fence from now on: what the old primary gave out and this one never saw is older.
    epoch: int
    #: Standbys that every commit waits for, though none of them is there. Empty: none does.
    waits_for: str = ""
