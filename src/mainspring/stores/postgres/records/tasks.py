"""The task catalog."""

from collections.abc import Sequence

from mainspring.core.model.tasks.task_entry import KnownTask, TaskEntry, check_registration
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin
from mainspring.stores.tasks import read_tasks


class TaskCatalogMixin(PostgresMixin):
    async def register_tasks(self, entries: Sequence[TaskEntry], worker: str) -> int:
        check_registration(entries, worker)
        bodies = {entry.name: entry.encode() for entry in entries}
        # Most registrations change nothing, and take no lock.
        if not await self._db.fetch("differing_tasks", names=list(bodies), bodies=list(bodies.values())):
            return 0

        async def put(connection: Connection) -> int:
            sql = self._db.sql
            await connection.execute(*sql["lock_tasks"].bind())
            rows = await connection.fetch(
                *sql["differing_tasks"].bind(names=list(bodies), bodies=list(bodies.values()))
            )
            names = [list(bodies)[row["position"] - 1] for row in rows]
            if names:
                await connection.execute(
                    *sql["put_tasks"].bind(names=names, bodies=[bodies[name] for name in names], worker=worker)
                )
            return len(names)

        return await self._db.transaction(put)

    async def list_tasks(self, after: int = 0) -> list[KnownTask]:
        rows = await self._db.fetch("list_tasks", after=after)
        return read_tasks(
            (row["rev"], row["version"], row["body"], row["registered_by"], row["registered_at"]) for row in rows
        )
