"""The Redis status cache: ``job_status:{id}``, ``worker_status:{name}`` and ``cancel:{id}``, each with an expiry."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import msgspec
from redis.asyncio.client import PubSub

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import SECOND, Instant, Micros, isoformat
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.status_cache import FLAGS_SHOWN, RUNS_SHOWN, WORKERS_SHOWN
from mainspring.integrations.redis.address import RedisAddress
from mainspring.integrations.redis.servers import RedisServers


class RedisStatusCache:
    def __init__(self, address: RedisAddress) -> None:
        self._servers = RedisServers(address)
        self._channel = ""
        self._listening: PubSub | None = None

    async def open(self, namespace: str) -> None:
        self._channel = f"{{mainspring:{namespace}}}:cancels"
        self._servers.open()

    async def close(self) -> None:
        await self._listen_no_more()
        await self._servers.close()

    async def show_runs(self, runs: Sequence[RunView]) -> None:
        await self._write({f"job_status:{run.id}": _encode(run) for run in runs}, RUNS_SHOWN)

    async def show_worker(self, name: str, status: Mapping[str, object]) -> None:
        await self._write({f"worker_status:{name}": msgspec.json.encode(status)}, WORKERS_SHOWN)

    async def hide_worker(self, name: str) -> None:
        await self._servers.ask(self._servers.client.delete, f"worker_status:{name}")

    async def flag(self, runs: Collection[RunId]) -> None:
        await self._write({f"cancel:{run}": b"true" for run in runs}, FLAGS_SHOWN)
        # Published after the flags, so that subscribers find them.
        await self._servers.ask(self._servers.client.publish, self._channel, "")

    async def flagged(self, wait: Micros) -> bool:
        if self._listening is None:
            listening = self._servers.listener()
            try:
                await self._servers.ask(listening.subscribe, self._channel)
            except BrokerUnavailable:
                await listening.aclose()  # type: ignore[no-untyped-call]
                raise
            self._listening = listening
            # Runs may have been flagged before the subscription, so the caller must check.
            return True
        read = partial(self._listening.get_message, ignore_subscribe_messages=True, timeout=wait / SECOND)
        try:
            return await self._servers.ask(read, wait=wait) is not None
        except BrokerUnavailable:
            await self._listen_no_more()
            raise

    async def _write(self, values: Mapping[str, bytes], shown: Micros) -> None:
        if not values:
            return
        pipeline = self._servers.client.pipeline(transaction=False)
        for key, value in values.items():
            pipeline.set(key, value, ex=shown // SECOND)
        await self._servers.ask(pipeline.execute)

    async def _listen_no_more(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            await listening.aclose()  # type: ignore[no-untyped-call]


def _encode(run: RunView) -> bytes:
    return msgspec.json.encode(
        {
            "id": run.id,
            "state": run.state.value,
            "task": run.task,
            "queue": run.queue,
            "tenant": run.tenant,
            "attempt": run.attempt,
            "reason": run.reason,
            "startedAt": _format_time(run.started_at),
            "finishedAt": _format_time(run.finished_at),
        }
    )


def _format_time(instant: Instant | None) -> str | None:
    return None if instant is None else isoformat(instant)
