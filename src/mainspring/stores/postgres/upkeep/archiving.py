"""Reads past history for an archive: one partition, in the order of ids."""

from collections.abc import Sequence

import asyncpg

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.runs.retention import CLASSES
from mainspring.core.model.runs.view import AttemptView
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.ports.upkeep.archive import ArchivedRun, ArchivePart
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.partitions import FAMILIES, HISTORIES, Partitions
from mainspring.stores.postgres.records.reading import ReadMixin, build_attempt_view
from mainspring.stores.postgres.rows import build_run_view
from mainspring.stores.statements import Statement

_FAMILY_OF = {"succeeded": "history_succeeded", "unsuccessful": "history_unsuccessful"} | {
    CLASSES[number]: family for number, family in HISTORIES.items()
}
_FIRST = "0" * 32


class ArchiveMixin(ReadMixin):
    _partitions: Partitions

    async def past_parts(self, retention: Retention) -> Sequence[ArchivePart]:
        now, days = await self.now(), await self._partitions.days()
        return sorted(
            (
                ArchivePart(kept_as=kept_as, since=day * FAMILIES[family], until=(day + 1) * FAMILIES[family])
                for kept_as, family in _FAMILY_OF.items()
                for day in days.get(family, ())
                if (day + 1) * FAMILIES[family] <= now - getattr(retention, kept_as)
            ),
            key=lambda part: part.since,
        )

    async def archived_runs(
        self, part: ArchivePart, after: ArchivedRun | None, limit: int, size: int
    ) -> Sequence[ArchivedRun]:
        family = _FAMILY_OF[part.kept_as]
        partition = f"{self._db.schema}.{family}_d{part.since // FAMILIES[family]}"
        source = self._db.sql["archived_runs"].source.replace(f"{self._db.schema}.history h", f"{partition} h")
        statement = Statement(source)

        async def work(connection: Connection) -> tuple[list[asyncpg.Record], list[asyncpg.Record]]:
            rows = await connection.fetch(
                *statement.bind(after=_FIRST if after is None else after.run.id, limit=limit, size=size)
            )
            tried = [row["id"] for row in rows if row["attempt"] > 1 or row["lost"] or row["state"] != 5]
            attempts = await connection.fetch(*self._db.sql["archived_attempts"].bind(runs=tried)) if tried else []
            return rows, attempts

        rows, attempts = await self._db.run(work)
        await self._names.load_names({row[name] for row in rows for name in ("queue", "tenant", "task")} - {None})
        of_run: dict[RunId, list[AttemptView]] = {}
        for row in attempts:
            of_run.setdefault(RunId(row["run_id"]), []).append(build_attempt_view(row))
        views = [build_run_view(row, self._names, self._policies) for row in rows]
        return [ArchivedRun(run=view, attempts=tuple(of_run.get(view.id, ()))) for view in views]
