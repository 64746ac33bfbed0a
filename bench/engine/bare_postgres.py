"""The statements of the PostgreSQL store with their arguments made in the cheapest way there is."""

import asyncpg

from bench.engine.bare import CLAIM, SUBMIT
from bench.engine.load import Load
from bench.sizes import PAYLOAD, QUEUE, TASK
from mainspring.core.model.base.ids import decode_shard
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
            await submitting.execute(*self._sql["add_names"].bind(kind=kind, names=[name]))
        self._names = {row["name"]: row["id"] for row in await submitting.fetch(*self._sql["names"].bind())}
        self._session = await claiming.fetchval(
            *self._sql["open_session"].bind(
                kind=1,
                name="bare",
                datacenter="",
                version="",
                ttl=HOUR,
                queues=[],
                tasks=[],
                owner="",
                serves="",
                labels=[],
                priorities=[],
                slots=None,
            )
        )
        self._submit = await submitting.prepare(self._sql["submit_now"].text)
        self._claim = await claiming.prepare(self._sql["claim"].text)
        self._complete = await settling.prepare(self._sql["complete_succeeded"].text)
        self._constant = {
            "task": [self._names[TASK]] * SUBMIT,
            "policy": [None] * SUBMIT,
            "payload": [PAYLOAD] * SUBMIT,
            "priority": [5] * SUBMIT,
            "tenant": [self._names["default"]] * SUBMIT,
            "queue": [self._names[QUEUE]] * SUBMIT,
            "timeout": [HOUR] * SUBMIT,
            "start_within": [None] * SUBMIT,
            "deadline": [None] * SUBMIT,
            "replay_of": [None] * SUBMIT,
            "channel": None,
            "message": None,
        }

    async def submit(self) -> int:
        runtime = await self._load.runtime()
        ids = runtime.jobs.new_run_ids([""] * SUBMIT)
        today = int(ids[0][:12], 16) * 1_000 // DAY
        _, *values = self._sql["submit_now"].bind(
            id=ids, bucket=[today] * SUBMIT, shard=[decode_shard(ids[0])] * SUBMIT, **self._constant
        )
        await self._submit.fetch(*values)
        return SUBMIT

    async def claim(self) -> list[asyncpg.Record]:
        self._claims += 1
        _, *values = self._sql["claim"].bind(
            session=self._session,
            claim=self._claims,
            queues=[self._names[QUEUE]],
            limits=[CLAIM],
            start_ranks=[0],
        )
        return await self._claim.fetch(*values)

    async def complete(self, held: list[asyncpg.Record]) -> None:
        _, *values = self._sql["complete_succeeded"].bind(
            runs=[row["id"] for row in held],
            fences=[row["fence"] for row in held],
            results=[None] * len(held),
            cpu=None,
            units=None,
        )
        await self._complete.fetch(*values)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
