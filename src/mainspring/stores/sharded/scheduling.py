"""The sharded store: operations of schedulers and reapers, on all servers at once.

A node does not use this: it runs these services once per server, so that an unavailable server does not stop the
others. This is for callers that drive a store by hand.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.cluster.placement import count_placement_groups
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.schedules.job import Fire, Job
from mainspring.core.ports.storage.answers import FireResult, StageResult
from mainspring.core.ports.storage.catalog import SessionView
from mainspring.core.ports.storage.coordination import Membership
from mainspring.core.ports.storage.slos import SloDue, SloResult
from mainspring.core.ports.storage.upkeep import Retention, UnattemptedRuns
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.sharded.mixin import ShardedMixin


class ShardedSchedulerMixin(ShardedMixin):
    async def join(self, name: str, ttl: Micros) -> SessionId:
        first, *others = self._servers.all
        member = await first.ask(lambda store: store.join(name, ttl))
        view = await first.ask(lambda store: store.session(member))
        assert isinstance(view, SessionView)
        await asyncio.gather(*(other.ask(lambda store: store.adopt_session(view, ttl)) for other in others))
        return member

    async def renew(self, member: SessionId, ttl: Micros) -> Membership:
        answers = await self._servers.everywhere(lambda store: store.renew(member, ttl))
        owned: dict[int, int] = {}
        for server, answer in zip(self._servers.all, answers, strict=True):
            owned |= {shard: epoch for shard, epoch in answer.owned.items() if self._has(server, shard)}
        return Membership(
            now=min(answer.now for answer in answers),
            members=answers[0].members,
            owned=owned,
            first_end=min((answer.first_end for answer in answers if answer.first_end is not None), default=None),
        )

    def _has(self, server: object, shard: int) -> bool:
        return self._servers.homes.get(shard % count_placement_groups(self._servers.shards)) is server

    async def take(self, member: SessionId, shards: Collection[int]) -> dict[int, int]:
        return self._of_homes(await self._servers.everywhere(lambda store: store.take(member, shards)))

    async def identity(self) -> str:
        return await self._servers.all[0].ask(PostgresStore.identity)

    async def epochs(self, shards: Collection[int]) -> dict[int, int]:
        return self._of_homes(await self._servers.everywhere(lambda store: store.epochs(shards)))

    async def seal(self, member: SessionId, epochs: Mapping[int, int]) -> dict[int, int]:
        return self._of_homes(await self._servers.everywhere(lambda store: store.seal(member, epochs)))

    def _of_homes(self, answers: Sequence[Mapping[int, int]]) -> dict[int, int]:
        """Return the value of each shard as its own server reports it."""
        return {
            shard: epoch
            for server, answer in zip(self._servers.all, answers, strict=True)
            for shard, epoch in answer.items()
            if self._has(server, shard)
        }

    async def give_up(self, member: SessionId, shards: Collection[int]) -> None:
        await self._servers.everywhere(lambda store: store.give_up(member, shards))

    async def leave(self, member: SessionId) -> None:
        await self._servers.everywhere(lambda store: store.leave(member))

    async def stage(self, owner: SessionId, shards: Sequence[int], limit: int) -> StageResult:
        parts = await self._servers.everywhere(lambda store: store.stage(owner, shards, limit))
        return StageResult(
            now=min(part.now for part in parts),
            runs=sum(part.runs for part in parts),
            queues=tuple(sorted({queue for part in parts for queue in part.queues})),
            more=any(part.more for part in parts),
            schedules_due=any(part.schedules_due for part in parts),
        )

    async def upcoming(self, shards: Sequence[int], until: Instant, limit: int) -> list[tuple[int, Instant]]:
        parts = await self._servers.everywhere(lambda store: store.upcoming(shards, until, limit))
        return sorted({pair for part in parts for pair in part}, key=lambda pair: (pair[1], pair[0]))[:limit]

    async def due_jobs(self, shards: Sequence[int], until: Instant, limit: int) -> list[Job]:
        parts = await self._servers.everywhere(lambda store: store.due_jobs(shards, until, limit))
        return sorted((job for part in parts for job in part), key=lambda job: (job.next_fire or 0, job.id))[:limit]

    async def fire(self, owner: SessionId, fires: Sequence[Fire]) -> list[FireResult]:
        async def call(store: PostgresStore, mine: Sequence[Fire]) -> list[FireResult]:
            return await store.fire(owner, mine)

        return await self._servers.spread(fires, lambda fire: self._servers.of_id(fire.job.id), call)

    async def lost_runs(self, limit: int) -> list[HeldRun]:
        parts = await self._servers.those_there(lambda store: store.lost_runs(limit))
        return [run for part in parts.values() for run in part][:limit]

    async def overdue_runs(self, grace: Micros, limit: int) -> list[HeldRun]:
        parts = await self._servers.those_there(lambda store: store.overdue_runs(grace, limit))
        return [run for part in parts.values() for run in part][:limit]

    async def expire(self, limit: int) -> int:
        return sum((await self._servers.those_there(lambda store: store.expire(limit))).values())

    async def resolve(self, limit: int) -> int:
        return sum((await self._servers.those_there(lambda store: store.resolve(limit))).values())

    async def sweep(self, limit: int) -> int:
        return sum((await self._servers.those_there(lambda store: store.sweep(limit))).values())

    async def tidy(self) -> list[UnattemptedRuns]:
        parts = await self._servers.those_there(PostgresStore.tidy)
        return [one for part in parts.values() for one in part]

    async def sample_load(self) -> Instant:
        return min((await self._servers.those_there(PostgresStore.sample_load)).values())

    async def queue_fronts(self, limit: int) -> list[RunId]:
        parts = await self._servers.those_there(lambda store: store.queue_fronts(limit))
        return [run for part in parts.values() for run in part][:limit]

    async def prune(self, retention: Retention, limit: int) -> int:
        return sum((await self._servers.those_there(lambda store: store.prune(retention, limit))).values())

    async def slos_due(self, limit: int) -> list[SloDue]:
        parts = await self._servers.those_there(lambda store: store.slos_due(limit))
        return [due for part in parts.values() for due in part][:limit]

    async def save_slos(self, results: Sequence[SloResult]) -> int:
        async def call(store: PostgresStore, mine: Sequence[SloResult]) -> list[int]:
            return [await store.save_slos(mine), *[0] * (len(mine) - 1)]

        return sum(await self._servers.spread(results, lambda item: self._servers.of_id(item.job), call))
