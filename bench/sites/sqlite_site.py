"""Sites of SQLite: each one is a file."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path

import apsw

from bench.figures import Figures
from bench.sites.site import Kept, Span
from mainspring.core.model.base.instant import Instant


class SqliteSite:
    embedded = True
    server_pid = None

    def __init__(self, path: Path) -> None:
        self.environment = {"MAINSPRING_STORE": str(path)}
        self._path = path

    async def span(self) -> Span:
        row = self._row("SELECT count(*), min(started_at), max(finished_at) FROM history")
        return Span(row[0], row[1] or 0, row[2] or 0)

    async def ended(self, since: Instant, until: Instant) -> int:
        return self._row("SELECT count(*) FROM history WHERE finished_at >= ? AND finished_at < ?", since, until)[0]

    async def ended_per(self, width: int, since: Instant) -> list[int]:
        with self._reading() as connection:
            found = dict(
                connection.execute(
                    "SELECT (finished_at - ?) / ?, count(*) FROM history WHERE finished_at >= ? GROUP BY 1",
                    (since, width, since),
                )
            )
        return [found.get(index, 0) for index in range(max(found, default=-1) + 1)]

    async def live(self) -> bool:
        return self._row("SELECT EXISTS (SELECT 1 FROM run)")[0] == 1

    async def unfinished(self) -> int:
        return self._row("SELECT (SELECT count(*) FROM run) + (SELECT count(*) FROM waiting)")[0]

    async def doubles(self) -> int:
        return self._row("SELECT count(*) - count(DISTINCT id) FROM history")[0]

    async def bytes(self) -> Mapping[str, int]:
        files = [self._path, self._path.with_name(self._path.name + "-wal")]
        return {file.suffix.lstrip("."): file.stat().st_size for file in files if file.exists()}

    async def kept(self) -> Kept:
        # One file has all of it; pages that are free by now were used by runs on their way.
        return Kept(sum((await self.bytes()).values()), 0)

    async def logged(self) -> int | None:
        return None

    async def transactions(self) -> int | None:
        return None

    async def dead_rows(self) -> Mapping[str, int]:
        return {}

    async def run_ids(self) -> list[str]:
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT id FROM run UNION ALL SELECT id FROM waiting UNION ALL SELECT id FROM history"
            )
            return [str(row[0]) for row in rows]

    async def readers(self) -> int:
        return self._row("SELECT count(*) FROM outbox_cursor")[0]

    async def ticks(self) -> dict[str, list[Instant]]:
        found: dict[str, list[Instant]] = {}
        with self._reading() as connection:
            for job, tick in connection.execute(
                "SELECT job_id, scheduled_at FROM ledger WHERE decision = 'run' ORDER BY 1, 2"
            ):
                found.setdefault(str(job), []).append(int(str(tick)))
        return found

    def _reading(self) -> "closing[apsw.Connection]":
        """A short look at a file that another process writes."""
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(5_000)
        return closing(connection)

    def _row(self, query: str, *arguments: int) -> tuple[int, ...]:
        with self._reading() as connection:
            return tuple(connection.execute(query, arguments).fetchone() or ())


class SqliteSiteFactory:
    """A directory. Every site is a file in it."""

    kind = "sqlite"

    def __init__(self, directory: Path) -> None:
        self.directory: Path | None = directory
        self.facts: Figures = {"sqlite": apsw.sqlite_lib_version(), "journal": "WAL", "synchronous": "FULL"}
        self._root = directory
        self._made = 0

    @asynccontextmanager
    async def site(self, name: str) -> AsyncIterator[SqliteSite]:
        self._made += 1
        path = self._root / f"{name}-{self._made}.db"
        try:
            yield SqliteSite(path)
        finally:
            for file in self._root.glob(f"{path.name}*"):
                file.unlink()
