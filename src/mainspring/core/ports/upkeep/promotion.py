"""The result of promoting a standby."""

import msgspec

from mainspring.core.model.base.instant import Instant, Micros

#: The name of the action in the audit.
PROMOTED = "store.promote"


class Promoted(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    address: str
    #: The last commit of the old primary that this server has. None: not known.
    last_commit: Instant | None
    #: How long it took until this server accepted writes.
    took: Micros
    #: Part of every fence from now on: fences that the old primary issued and this server never saw are older.
    epoch: int
    #: Standbys that every commit waits for although none is connected. Empty: no such wait.
    waits_for: str = ""
