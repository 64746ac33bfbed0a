"""What is written down elsewhere before it is forgotten."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.runs.view import AttemptView, RunView
from mainspring.core.store import Retention


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What ended in a span of time and is kept alike."""

    #: The field of ``Retention`` that says how long it is kept.
    kept_as: str
    since: Instant
    until: Instant


class ArchivedRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that has ended, with its payload, and its attempts that did not succeed."""

    run: RunView
    attempts: tuple[AttemptView, ...] = ()


@runtime_checkable
class Archiving(Protocol):
    async def now(self) -> Instant: ...

    async def identity(self) -> str:
        """Whose archive it is."""
        ...

    async def past_parts(self, retention: Retention) -> Sequence[Part]:
        """The parts that ``prune`` would forget, whole; oldest first. They begin and end at midnight (UTC), and
        nothing is added to them any more."""
        ...

    async def archived_runs(
        self, part: Part, after: ArchivedRun | None, limit: int, size: int
    ) -> Sequence[ArchivedRun]:
        """The runs of a part in an order of their own, those that follow one: so many at most, and fewer if their
        payloads and results have more bytes than ``size``. None only if there are no more."""
        ...
