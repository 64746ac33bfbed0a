"""The port for archiving ended runs before they are deleted."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.view import AttemptView, RunView
from mainspring.core.ports.storage.upkeep import Retention


class ArchivePart(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that ended in a span of time and have the same retention."""

    #: The field of ``Retention`` that applies.
    kept_as: str
    since: Instant
    until: Instant


class ArchivedRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An ended run with its payload, and its attempts that did not succeed."""

    run: RunView
    attempts: tuple[AttemptView, ...] = ()


@runtime_checkable
class ArchiveStore(Protocol):
    async def now(self) -> Instant: ...

    async def identity(self) -> str:
        """Return the identity of the store that the archive belongs to."""
        ...

    async def past_parts(self, retention: Retention) -> Sequence[ArchivePart]:
        """Return the parts that ``prune`` would delete completely, oldest first.

        They begin and end at midnight (UTC), and no runs are added to them any more.
        """
        ...

    async def archived_runs(
        self, part: ArchivePart, after: ArchivedRun | None, limit: int, size: int
    ) -> Sequence[ArchivedRun]:
        """Return the runs of a part that follow ``after``, in a fixed order.

        At most ``limit`` runs, and fewer if their payloads and results exceed ``size`` bytes. Empty only if there are
        no more.
        """
        ...
