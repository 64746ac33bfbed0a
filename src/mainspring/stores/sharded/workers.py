"""The sharded store: workers, with one session under one id on every server."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import MILLISECOND, Micros
from mainspring.core.model.runs.completion import Completion, CompletionAnswer
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.answers import HeartbeatAnswer, PartialCompletion
from mainspring.core.ports.storage.catalog import Checkpoint, LogReport, ProgressReport, SessionView
from mainspring.core.store import Demand, NewSession
from mainspring.stores.postgres import PostgresStore
from mainspring.stores.sharded.mixin import ShardedMixin
from mainspring.stores.sharded.server import Server
from mainspring.stores.sharded.servers import PartialAnswer

Report = TypeVar("Report", ProgressReport, LogReport)
#: How long claims ask a server last that had nothing for the session. While other servers fill the slots it is not
#: asked in vain. A longer time would delay the runs that became ready there meanwhile.
_NOTHING_FOR: Micros = 200 * MILLISECOND


class ShardedWorkerMixin(ShardedMixin):
    #: Seconds after which a claim skips a server.
    claim_timeout = 3.0
    _clock: Clock
    #: Rotates the server that claims begin with.
    _turn = 0
    #: When this process sent the last heartbeat that each server accepted, by (session, server).
    _heard: dict[tuple[SessionId, int], Micros]
    #: When each server last had nothing for a session, by (session, server).
    _had_nothing: dict[tuple[SessionId, int], Micros]

    async def open_session(self, session: NewSession) -> SessionId:
        first, number = await self._open_somewhere(session)
        view = await first.ask(lambda store: store.session(number))
        if view is not None:
            await self._adopt(view, session.ttl, [server for server in self._servers.all if server is not first])
        return number

    async def _open_somewhere(self, session: NewSession) -> tuple[Server, SessionId]:
        error: StoreUnavailable | None = None
        for server in self._servers.all:
            try:
                return server, await server.ask(lambda store: store.open_session(session))
            except StoreUnavailable as failure:
                error = failure
        raise error or StoreUnavailable("the store has no servers")

    async def _adopt(self, view: SessionView, ttl: Micros, servers: Sequence[Server]) -> None:
        """Register a session on servers. A server that is unavailable receives it with a later heartbeat."""
        outcomes = await asyncio.gather(
            *(server.ask(lambda store: store.adopt_session(view, ttl)) for server in servers), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, StoreUnavailable):
                raise outcome

    async def close_session(self, session: SessionId) -> None:
        await self._servers.those_there(lambda store: store.close_session(session))
        for server in self._servers.all:
            self._heard.pop((session, server.number), None)
            self._had_nothing.pop((session, server.number), None)

    async def heartbeat(
        self, session: SessionId, ttl: Micros, held: Collection[RunId], pending: Collection[int], last_claim: int
    ) -> HeartbeatAnswer:
        """Send all held runs to every server: a run may have moved since this process read the placement map."""
        sent = self._clock.monotonic()
        heartbeats = await self._servers.those_there(
            lambda store: store.heartbeat(session, ttl, held, pending, last_claim)
        )
        return await self._as_one(session, ttl, held, heartbeats, sent)

    async def renew_leases(self, leases: Sequence[tuple[SessionId, Micros]]) -> list[HeartbeatAnswer]:
        sent = self._clock.monotonic()
        found = await self._servers.those_there(lambda store: store.renew_leases(leases))
        return [
            await self._as_one(
                session, ttl, (), {server: heartbeats[number] for server, heartbeats in found.items()}, sent
            )
            for number, (session, ttl) in enumerate(leases)
        ]

    async def _as_one(
        self,
        session: SessionId,
        ttl: Micros,
        held: Collection[RunId],
        heartbeats: Mapping[Server, HeartbeatAnswer],
        sent: Micros,
    ) -> HeartbeatAnswer:
        """Combine the answers of all servers to the heartbeat of a session."""
        alive = {server: heartbeat for server, heartbeat in heartbeats.items() if heartbeat.alive}
        if not alive:
            return next(iter(heartbeats.values()))
        lost: list[RunId] = []
        expired = [server for server, heartbeat in heartbeats.items() if not heartbeat.alive]
        if expired:
            lost += await self._bring_back(session, ttl, held, next(iter(alive)), expired)
        lost += self._unheard(session, ttl, held, alive, sent)
        return HeartbeatAnswer(
            now=max(heartbeat.now for heartbeat in alive.values()),
            alive=True,
            cancels=tuple(run for heartbeat in alive.values() for run in heartbeat.cancels),
            returned=sum(heartbeat.returned for heartbeat in alive.values()),
            draining=any(heartbeat.draining for heartbeat in alive.values()),
            lost=tuple(dict.fromkeys(lost)),
        )

    async def _bring_back(
        self, session: SessionId, ttl: Micros, held: Collection[RunId], knows: Server, expired: Sequence[Server]
    ) -> list[RunId]:
        """Register the session again on servers that are new or were unavailable for a lease.

        Return the runs that the worker must stop.
        """
        view = await knows.ask(lambda store: store.session(session))
        if view is None:
            return []
        lost: list[RunId] = []
        for server in expired:
            # Where the session had expired, its runs are being given to other workers. On a new server it never
            # expired.
            if await server.ask(partial(PostgresStore.adopt_session, session=view, ttl=ttl)):
                lost += [run for run in held if self._servers.homes.get(self._servers.of_id(run)) is server]
        return lost

    def _unheard(
        self, session: SessionId, ttl: Micros, held: Collection[RunId], alive: Collection[Server], sent: Micros
    ) -> list[RunId]:
        """Return the runs whose lease on their server is over or nearly over: other workers may have them by now."""
        for server in alive:
            self._heard[session, server.number] = sent
        silent = set()
        for server in self._servers.all:
            since = self._heard.setdefault((session, server.number), sent)
            if sent - since > ttl - ttl // 5:
                silent.add(server)
        if not silent:
            return []
        return [run for run in held if self._servers.homes.get(self._servers.of_id(run)) in silent]

    async def claim(self, session: SessionId, number: int, demands: Sequence[Demand]) -> list[HeldRun]:
        """Claim from one server after the other until the slots are full.

        Each claim begins with another server, so under load the batches are as large as with one server. Servers that
        had nothing just now come last.
        """
        there = [server for server in self._servers.all if not server.away]
        if not there:
            raise StoreUnavailable("every server of the store is unavailable")
        self._turn += 1
        first = self._turn % len(there)
        found: list[HeldRun] = []
        error: StoreUnavailable | None = None
        answered = False
        since = self._clock.monotonic() - _NOTHING_FOR
        in_turn = there[first:] + there[:first]
        for server in sorted(
            in_turn, key=lambda server: self._had_nothing.get((session, server.number), since) > since
        ):
            left = _left(demands, found)
            if not left:
                break
            left = self._for_server(server, left)
            if not left:
                continue
            try:
                async with asyncio.timeout(self.claim_timeout):
                    held = await server.ask(partial(PostgresStore.claim, session=session, number=number, demands=left))
                answered = True
                found += held
                if not held:
                    self._had_nothing[session, server.number] = self._clock.monotonic()
            except StoreUnavailable as failure:
                error = failure
            except TimeoutError:
                server.doubt()
                error = StoreUnavailable(f"{server} did not answer a claim in time")
        if error is not None and not answered:
            raise error
        return found

    def _for_server(self, server: Server, demands: Sequence[Demand]) -> list[Demand]:
        """Return the demand for one server. Of hints, keep those for runs that it owns."""
        found = []
        for demand in demands:
            if demand.runs is not None:
                runs = tuple(run for run in demand.runs if self._servers.homes.get(self._servers.of_id(run)) is server)
                demand = msgspec.structs.replace(demand, runs=runs, limit=min(demand.limit, len(runs)))
            if demand.limit > 0:
                found.append(demand)
        return found

    async def complete(self, completions: Sequence[Completion]) -> list[CompletionAnswer]:
        try:
            return await self._servers.spread(
                completions,
                lambda item: self._servers.of_id(item.run),
                PostgresStore.complete,
                lambda answer: answer is CompletionAnswer.STALE,
            )
        except PartialAnswer as error:
            raise PartialCompletion(str(error), error.answers) from error  # type: ignore[arg-type]

    async def report_progress(self, progress: Sequence[ProgressReport]) -> list[bool]:
        return await self._report(progress, PostgresStore.report_progress)

    async def append_log(self, lines: Sequence[LogReport]) -> list[bool]:
        return await self._report(lines, PostgresStore.append_log)

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> list[bool]:
        return await self._servers.spread(
            checkpoints,
            lambda item: self._servers.of_id(item.run),
            PostgresStore.save_checkpoints,
            lambda accepted: not accepted,
        )

    async def _report(
        self, reports: Sequence[Report], call: Callable[[PostgresStore, Sequence[Report]], Awaitable[Sequence[bool]]]
    ) -> list[bool]:
        try:
            return await self._servers.spread(
                reports, lambda item: self._servers.of_id(item.run), call, lambda accepted: not accepted
            )
        except PartialAnswer as error:
            # Reports for a server that is unavailable are dropped: the outcomes of other runs must not wait for them.
            return [accepted is not False for accepted in error.answers]


def _left(demands: Sequence[Demand], found: Sequence[HeldRun]) -> list[Demand]:
    """Return the demand that is still unmet."""
    if not found:
        return list(demands)
    if len(demands) == 1 and len(found) >= demands[0].limit:
        return []
    left = []
    taken = [(run.queue, run.priority, run.policy.weight) for run in found]
    for demand in demands:
        used = 0
        rest = []
        for queue, priority, weight in taken:
            fits = queue == demand.queue and (demand.priority is None or demand.priority == priority)
            if fits and used < demand.limit:
                used += min(weight, demand.slots or weight)
            else:
                rest.append((queue, priority, weight))
        taken = rest
        if used < demand.limit:
            left.append(msgspec.structs.replace(demand, limit=demand.limit - used))
    return left
