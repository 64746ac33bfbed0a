"""The sharded store: changes by users. A tenant's objects change on its server, shared objects on every server."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from mainspring.core.model.access.access import ApiKey, Tenant
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.budget import Budget, BudgetStatus
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.replay import Replay
from mainspring.core.model.runs.restored import KnownOutcome
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.calendar import Calendar, CalendarSpec
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.answers import SubmitResult
from mainspring.core.ports.storage.catalog import Pause
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.sharded.merging import merge_by
from mainspring.stores.sharded.mixin import ShardedMixin

T = TypeVar("T")


class ShardedUserChangeMixin(ShardedMixin):
    async def _at_home(self, tenant: str, call: Callable[[PostgresStore], Awaitable[T]]) -> T:
        return await self._servers.at(self._servers.of_tenant(tenant), call)

    async def _first_of_all(self, call: Callable[[PostgresStore], Awaitable[T]]) -> T:
        return (await self._servers.one_after_the_other(call))[0]

    async def edit_run(self, run: NewRun, author: Author, *, was: RunView | None = None) -> SubmitResult | None:
        return await self._servers.at(
            self._servers.of_id(run.id),
            lambda store: store.edit_run(run, author, was=was),
            lambda found: found is None,
        )

    async def finish(self, ends: Sequence[KnownOutcome], author: Author) -> dict[RunId, RunState]:
        known = {end.run: end for end in ends}

        async def call(store: PostgresStore, ids: Sequence[RunId]) -> list[RunState | None]:
            found = await store.finish([known[run] for run in ids], author)
            return [found.get(run) for run in ids]

        states = await self._servers.spread(list(known), self._servers.of_id, call, lambda found: found is None)
        return {run: found for run, found in zip(known, states, strict=True) if found is not None}

    async def _counted(
        self, ids: Collection[str], call: Callable[[PostgresStore, Sequence[str]], Awaitable[int]]
    ) -> int:
        async def counting(store: PostgresStore, mine: Sequence[str]) -> list[int]:
            # The count of all items stands at the first of them.
            return [await call(store, mine), *[0] * (len(mine) - 1)]

        return sum(await self._servers.spread(list(dict.fromkeys(ids)), self._servers.of_id, counting))

    async def discard(self, runs: Collection[RunId], author: Author) -> int:
        return await self._counted(runs, lambda store, mine: store.discard([RunId(run) for run in mine], author))

    async def bring_back(self, runs: Collection[RunId], author: Author) -> int:
        return await self._counted(runs, lambda store, mine: store.bring_back([RunId(run) for run in mine], author))

    async def retag(
        self, ids: Collection[RunId | JobId], add: Collection[str], remove: Collection[str], author: Author
    ) -> int:
        return await self._counted(
            ids, lambda store, mine: store.retag([RunId(one) for one in mine], add, remove, author)
        )

    async def purge(self, ids: Collection[RunId | JobId], author: Author) -> list[str]:
        async def call(store: PostgresStore, mine: Sequence[RunId | JobId]) -> list[bool]:
            gone = set(await store.purge(mine, author))
            return [one in gone for one in mine]

        given = list(dict.fromkeys(ids))
        gone = await self._servers.spread(given, self._servers.of_id, call, lambda was: not was)
        return [str(one) for one, was in zip(given, gone, strict=True) if was]

    async def pause(self, pause: Pause, author: Author) -> None:
        await self._first_of_all(lambda store: store.pause(pause, author))

    async def resume(self, tenant: str | None, queue: str | None, author: Author, *, back: Pause | None = None) -> bool:
        return any(
            await self._servers.one_after_the_other(lambda store: store.resume(tenant, queue, author, back=back))
        )

    async def put_queue_policy(self, queue: str, policy: QueuePolicy, author: Author) -> None:
        for field, value in (("concurrency", policy.concurrency), ("retries", policy.retries)):
            if value is not None:
                raise Invalid(
                    field,
                    "counts a queue over all tenants, and the store has several servers",
                    "a limit by key, which counts in one tenant" if field == "concurrency" else "",
                )
        await self._first_of_all(lambda store: store.put_queue_policy(queue, policy, author))

    async def drain(self, worker: SessionId, author: Author) -> bool:
        return any((await self._servers.those_there(lambda store: store.drain(worker, author))).values())

    async def revoke_lease(self, scheduler: SessionId, author: Author) -> Instant | None:
        """Revoke the lease on the server that knows the session under this id."""
        found = await self._servers.those_there(lambda store: store.revoke_lease(scheduler, author))
        return next((at for at in found.values() if at is not None), None)

    async def put_tenant(self, tenant: Tenant, author: Author) -> Tenant:
        return await self._first_of_all(lambda store: store.put_tenant(tenant, author))

    async def tenants(self) -> list[Tenant]:
        found = await self._servers.everywhere(PostgresStore.tenants)
        merged = merge_by(
            (tenant for part in found for tenant in part),
            lambda tenant: tenant.name,
            lambda one, other: one if one.created_at else other,
        )
        return sorted(merged, key=lambda tenant: tenant.name)

    async def put_key(self, key: ApiKey, author: Author) -> ApiKey:
        return await self._first_of_all(lambda store: store.put_key(key, author))

    async def key(self, identifier: str) -> ApiKey | None:
        return await self._servers.any(lambda store: store.key(identifier))

    async def revoke_key(self, identifier: str, tenant: str | None, author: Author) -> ApiKey | None:
        return await self._first_of_all(lambda store: store.revoke_key(identifier, tenant, author))

    async def sign_out(self, session: str, ends_at: Instant) -> None:
        await self._servers.everywhere(lambda store: store.sign_out(session, ends_at))

    async def is_signed_out(self, session: str) -> bool:
        return any((await self._servers.those_there(lambda store: store.is_signed_out(session))).values())

    async def touch_keys(self, identifiers: list[str]) -> None:
        await self._servers.those_there(lambda store: store.touch_keys(identifiers))

    async def put_calendar(
        self, tenant: str, name: str, spec: CalendarSpec, author: Author, *, expected_version: int | None = None
    ) -> Calendar:
        return await self._at_home(
            tenant, lambda store: store.put_calendar(tenant, name, spec, author, expected_version=expected_version)
        )

    async def delete_calendar(self, tenant: str, name: str, author: Author) -> bool:
        return await self._at_home(tenant, lambda store: store.delete_calendar(tenant, name, author))

    async def put_budget(self, budget: Budget, author: Author) -> BudgetStatus:
        return await self._at_home(budget.tenant, lambda store: store.put_budget(budget, author))

    async def drop_budget(self, tenant: str, name: str, author: Author) -> bool:
        return await self._at_home(tenant, lambda store: store.drop_budget(tenant, name, author))

    async def spent(self, status: BudgetStatus, since: Instant) -> float:
        # Usage from before a move was counted on the previous server.
        return sum(await self._servers.everywhere(lambda store: store.spent(status, since)))

    async def mark_budget(self, before: BudgetStatus, after: BudgetStatus, events: Collection[str]) -> bool:
        return await self._at_home(before.budget.tenant, lambda store: store.mark_budget(before, after, events))

    async def lower(self, budget: Budget, limit: int) -> int:
        return sum(await self._servers.everywhere(lambda store: store.lower(budget, limit)))

    async def watch_dead_letters(self) -> int:
        return sum((await self._servers.those_there(PostgresStore.watch_dead_letters)).values())

    async def _with_replay(self, replay: Replay, call: Callable[[PostgresStore], Awaitable[T]]) -> T:
        if replay.tenant is None:
            return await self._servers.all[0].ask(call)
        return await self._at_home(replay.tenant, call)

    async def put_replay(self, replay: Replay) -> None:
        await self._with_replay(replay, lambda store: store.put_replay(replay))

    async def move_replay(self, replay: Replay) -> bool:
        return await self._with_replay(replay, lambda store: store.move_replay(replay))

    async def open_replays(self) -> Sequence[Replay]:
        found = await self._servers.those_there(PostgresStore.open_replays)
        return sorted((replay for part in found.values() for replay in part), key=lambda replay: replay.id)[:100]

    async def replays(self, tenant: str | None, limit: int) -> Sequence[Replay]:
        found = await self._servers.everywhere(lambda store: store.replays(tenant, limit))
        return sorted((replay for part in found for replay in part), key=lambda replay: replay.id, reverse=True)[:limit]

    async def replay(self, identifier: str) -> Replay | None:
        found = await self._servers.everywhere(lambda store: store.replay(identifier))
        return next((replay for replay in found if replay is not None), None)
