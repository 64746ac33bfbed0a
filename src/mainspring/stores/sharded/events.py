"""The sharded store: the events of all servers as one stream."""

import heapq
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

import msgspec

from mainspring.core.model.base.errors import NotFound
from mainspring.core.model.base.event_offsets import join_position, split_position
from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.model.events.events import RunFacts, WorkerFacts
from mainspring.core.model.tasks.task_entry import KnownTask, TaskEntry
from mainspring.core.ports.events_out import ReaderView
from mainspring.core.ports.storage.notifications import NotificationRows
from mainspring.core.ports.storage.outbox import EventBatch
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.sharded.mixin import ShardedMixin


class ShardedEventMixin(ShardedMixin):
    async def hint_key(self) -> str:
        return await self._servers.all[0].ask(PostgresStore.hint_key)

    async def find_hints(self, runs: Sequence[RunId]) -> list[Hint]:
        return await self._hints(lambda store: store.find_hints(runs))

    async def find_ready_hints(self, queues: Collection[str] | None, limit: int) -> list[Hint]:
        return await self._hints(lambda store: store.find_ready_hints(queues, limit))

    async def _hints(self, call: Callable[[PostgresStore], Awaitable[list[Hint]]]) -> list[Hint]:
        return [hint for found in (await self._servers.those_there(call)).values() for hint in found]

    async def read_run_facts(self, runs: Sequence[RunId], since: Instant) -> list[RunFacts]:
        found = await self._servers.those_there(lambda store: store.read_run_facts(runs, since))
        return [facts for part in found.values() for facts in part]

    async def read_worker_facts(self, sessions: Sequence[SessionId]) -> list[WorkerFacts]:
        found = await self._servers.those_there(lambda store: store.read_worker_facts(sessions))
        return list({facts.id: facts for part in found.values() for facts in part}.values())

    async def readers(self) -> list[ReaderView]:
        """Return the cursors of the readers: of each reader, the cursor on the server where it lags most."""
        found = await self._servers.those_there(lambda store: store.readers())
        oldest: dict[str, Instant | None] = {}
        for reader in (reader for part in found.values() for reader in part):
            groups = [group for group in (oldest.get(reader.name), reader.oldest) if group is not None]
            oldest[reader.name] = min(groups, default=None)
        return [ReaderView(name, group) for name, group in sorted(oldest.items())]

    async def notification_rows(self) -> NotificationRows:
        """Return the alert state of all servers, for display. Alerts are sent for each server separately."""
        found = await self._servers.those_there(lambda store: store.notification_rows())
        rows: dict[str, bytes] = {}
        for server, part in found.items():
            rows |= {name if name not in rows else f"{name} ({server})": body for name, body in part.rows.items()}
        first = found.get(self._servers.all[0])
        return NotificationRows(0 if first is None else first.rev, rows)

    async def change_notification_rows(self, rev: int, changes: Mapping[str, bytes | None]) -> bool:
        return await self._servers.all[0].ask(lambda store: store.change_notification_rows(rev, changes))

    async def register_tasks(self, entries: Sequence[TaskEntry], worker: str) -> int:
        return await self._servers.all[0].ask(lambda store: store.register_tasks(entries, worker))

    async def list_tasks(self, after: int = 0) -> list[KnownTask]:
        return await self._servers.all[0].ask(lambda store: store.list_tasks(after))

    async def attach_reader(self, name: str, ttl: Micros | None = None) -> None:
        await self._servers.those_there(lambda store: store.attach_reader(name, ttl))

    async def detach_reader(self, name: str) -> None:
        await self._servers.those_there(lambda store: store.detach_reader(name))

    async def events(self, name: str, limit: int) -> list[EventBatch]:
        """Return the next events. They are in order per server, and roughly in time order between servers."""
        found = await self._servers.those_there(lambda store: store.events(name, limit))
        return _merged({server.number: batches for server, batches in found.items()}, limit)

    async def acknowledge(self, name: str, position: str) -> None:
        parts = split_position(position)
        if parts is None:
            raise NotFound(f"{position!r:.60} is no position")
        for server in self._servers.all:
            if server.number in parts:
                await server.ask(partial(PostgresStore.acknowledge, name=name, position=parts[server.number]))

    async def events_after(self, position: str | None, limit: int) -> tuple[list[EventBatch], str]:
        if position is None:
            newest = await self._servers.those_there(lambda store: store.events_after(None, limit))
            return [], join_position({server.number: group for server, (_, group) in newest.items()})
        parts = split_position(position)
        if parts is None or not {server.number for server in self._servers.all if not server.away} <= parts.keys():
            raise NotFound("the position says nothing of one of the servers")
        groups = parts
        numbers = {server.store: server.number for server in self._servers.all}
        found = await self._servers.those_there(lambda store: store.events_after(groups[numbers[store]], limit))
        batches = _merged({server.number: batches for server, (batches, _) in found.items()}, limit)
        groups = dict(parts)
        for batch in batches:
            # The batches of one server are in order.
            groups |= split_position(batch.position) or {}
        return batches, join_position(groups)


def _merged(found: dict[int, list[EventBatch]], limit: int) -> list[EventBatch]:
    parts = [
        [msgspec.structs.replace(batch, position=join_position({number: batch.position})) for batch in batches]
        for number, batches in sorted(found.items())
    ]
    return list(heapq.merge(*parts, key=lambda batch: batch.at))[:limit]
