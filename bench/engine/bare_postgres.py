"""The statements of the PostgreSQL store with their arguments made in the cheapest way there is."""

import asyncpg

from bench.engine.bare import CLAIM, SUBMIT
from bench.engine.load import Load
from bench.sizes import PAYLOAD, QUEUE, TASK
from mainspring.core.model.base.ids import shard_of
from mainspring.core.model.base.instant import DAY, HOUR
from mainspring.stores.postgres.database import SESSION, Database


class Statements:
    """Three connections: one submits, one claims, one settles."""

    def __init__(self, load: Load, connections: "list[asyncpg.Connection[asyncpg.Record]]") -> None:
        self._load = load
        self._sql = Database(load.settings.store, load.settings.schema, 1).sql
        self._connections = connections
        self._claims = 0
        self._session = 0
        self._names: dict[str, int] = {}

    @classmethod
    async def open(cls, load: Load) -> "Statements":
        await load.runtime()
        connections = [await asyncpg.connect(load.settings.store, server_settings=SESSION) for _ in range(3)]
        for connection in connections:
            await connection.set_type_codec(
                "uuid", schema="pg_catalog", encoder=bytes.fromhex, decoder=bytes.hex, format="binary"
            )
        made = cls(load, connections)
        await made._prepare()
        return made

    async def _prepare(self) -> None:
        submitting, claiming, settling = self._connections
        for kind, name in ((1, "default"), (2, TASK), (3, QUEUE)):
            await submitting.execute(*self._sql["intern"].bind(kind, [name]))
        self._names = {row["name"]: row["id"] for row in await submitting.fetch(*self._sql["names"].bind())}
        self._session = await claiming.fetchval(
            *self._sql["open_session"].bind(1, "bare", "", "", HOUR, [], [], "", "", [], [], None)
        )
        self._submit = await submitting.prepare(self._sql["submit_now"].text)
        self._claim = await claiming.prepare(self._sql["claim"].text)
        self._complete = await settling.prepare(self._sql["settle_succeeded"].text)
        none = [None] * SUBMIT
        self._constant = (
            [self._names[TASK]] * SUBMIT,
            none,
            [PAYLOAD] * SUBMIT,
            [5] * SUBMIT,
            [self._names["default"]] * SUBMIT,
            [self._names[QUEUE]] * SUBMIT,
            [HOUR] * SUBMIT,
        )

    async def submit(self) -> int:
        runtime = await self._load.runtime()
        ids = runtime.jobs.new_run_ids([""] * SUBMIT)
        today = int(ids[0][:12], 16) * 1_000 // DAY
        tasks, none, payloads, priorities, tenants, queues, timeouts = self._constant
        await self._submit.fetch(
            ids,
            [today] * SUBMIT,
            tasks,
            none,
            payloads,
            [shard_of(ids[0])] * SUBMIT,
            priorities,
            tenants,
            queues,
            timeouts,
            none,
            none,
            none,
            None,
            None,
        )
        return SUBMIT

    async def claim(self) -> list[asyncpg.Record]:
        self._claims += 1
        return await self._claim.fetch(self._session, self._claims, [self._names[QUEUE]], [CLAIM], [0])

    async def complete(self, held: list[asyncpg.Record]) -> None:
        ids, fences = [row["id"] for row in held], [row["fence"] for row in held]
        await self._complete.fetch(ids, fences, [None] * len(held), None, None)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
