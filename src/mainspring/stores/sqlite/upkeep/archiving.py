"""Reads history for an archive: one day at a time, in the order in which runs ended."""

from collections.abc import Sequence

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY
from mainspring.core.model.runs.view import AttemptView
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.ports.upkeep.archive import ArchivedRun, ArchivePart
from mainspring.stores.sqlite.records.reading import SqliteReads
from mainspring.stores.sqlite.rows.answers import decode_ids
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.rows.views import decode_attempts

_STANDARD = ("succeeded", "unsuccessful")
#: How many runs are read at a time. Their size is known only then.
_BATCH = 50


class _PastDay(msgspec.Struct, frozen=True):
    kept_as: str
    day: int


_decode_days = msgspec.json.Decoder(list[_PastDay]).decode


class SqliteArchives(SqliteReads):
    async def past_parts(self, retention: Retention) -> Sequence[ArchivePart]:
        now = await self.now()
        # Only whole days: a day whose last runs must still be kept is left out.
        until = {name: (now - getattr(retention, name)) // DAY * DAY for name in (*_STANDARD, "short", "long", "audit")}
        found = _decode_days(await self._reader.read("past_days", **until))
        return [ArchivePart(kept_as=row.kept_as, since=row.day * DAY, until=(row.day + 1) * DAY) for row in found]

    async def archived_runs(
        self, part: ArchivePart, after: ArchivedRun | None, limit: int, size: int
    ) -> Sequence[ArchivedRun]:
        name = f"archived_{part.kept_as}" if part.kept_as in _STANDARD else "archived_class"
        at, last = (part.since, "") if after is None else (after.run.finished_at or 0, after.run.id)
        found = await self._reader.read(
            name,
            until=part.until,
            at=at,
            after=last,
            limit=limit,
            **({} if "class" not in name else {"class": part.kept_as}),
        )
        ids = decode_ids(found)
        runs: list[ArchivedRun] = []
        for first in range(0, len(ids), _BATCH):
            more = await self._read_archived(ids[first : first + _BATCH])
            runs += more
            size -= sum(len(one.run.payload or b"") + len(one.run.result or b"") for one in more)
            if size <= 0 and runs:
                break
        return runs

    async def _read_archived(self, ids: list[RunId]) -> list[ArchivedRun]:
        views = [view for view in await self.runs(ids, payloads=True) if view is not None]
        by_run: dict[RunId, list[AttemptView]] = {}
        for attempt in decode_attempts(await self._reader.read("run_attempts", runs=encode(ids))):
            by_run.setdefault(attempt.run_id, []).append(attempt)
        return [ArchivedRun(run=view, attempts=tuple(by_run.get(view.id, ()))) for view in views]
