"""SQLite: operations of workers, which open sessions, claim runs and report outcomes."""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence

from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.completion import Completion, CompletionAnswer
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.storage.answers import HeartbeatAnswer
from mainspring.core.store import Demand, NewSession
from mainspring.stores.sqlite.rows.answers import decode_heartbeat, decode_rejected
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.rows.items import build_completion_item, build_cost_item
from mainspring.stores.sqlite.rows.runs import decode_held_runs
from mainspring.stores.sqlite.threads import ProcedureCall, call_procedures
from mainspring.stores.sqlite.work.queues import SqliteQueues


class SqliteWorkers(SqliteQueues):
    async def open_session(self, session: NewSession) -> SessionId:
        batch = encode(
            (
                session.name,
                session.kind,
                session.ttl,
                session.version,
                session.datacenter,
                session.queues,
                session.tasks,
                session.owner,
                session.serves,
                session.labels,
                session.priorities,
                session.slots,
            )
        )
        return SessionId(int(await self._writer.call("open_session", batch)))

    async def heartbeat(
        self, session: SessionId, ttl: Micros, held: Collection[RunId], pending: Collection[int], last_claim: int
    ) -> HeartbeatAnswer:
        batch = encode((ttl, list(held), list(pending)))
        answer = await self._writer.call("heartbeat", batch, session=session, argument=last_claim)
        return decode_heartbeat(answer)

    async def renew_leases(self, leases: Sequence[tuple[SessionId, Micros]]) -> list[HeartbeatAnswer]:
        # Heartbeats that are sent together share a commit.
        return await asyncio.gather(*(self.heartbeat(session, ttl, (), (), -1) for session, ttl in leases))

    async def claim(self, session: SessionId, number: int, demands: Sequence[Demand]) -> list[HeldRun]:
        by_policy = await self._filter_policy_demands(demands)
        if by_policy:
            answer, bounded = await self._claim_by_policy(session, number, by_policy)
            held = await self._decode_held(answer)
            for run in held:
                run.limited = run.queue in bounded
            others = [demand for demand in demands if demand not in by_policy]
            return held + (await self.claim(session, number, others) if others else [])
        limits: Counter[tuple[str, str | None]] = Counter()
        for demand in demands:
            limits[demand.queue, demand.tenant] += max(demand.limit, 0)
        # Demands for one tenant come last: only they consider what was picked before them.
        scopes = sorted(limits, key=lambda scope: scope[1] is not None)
        batch = encode([(queue, limits[queue, tenant], tenant) for queue, tenant in scopes])
        return await self._decode_held(await self._writer.call("claim", batch, session=session, argument=number))

    async def _decode_held(self, answer: str) -> list[HeldRun]:
        held, unreadable = decode_held_runs(answer)
        await self.complete(unreadable)
        return held

    async def complete(self, completions: Sequence[Completion]) -> list[CompletionAnswer]:
        if not completions:
            return []
        if any(completion.spent is not None for completion in completions):
            batch = encode([build_cost_item(completion) for completion in completions])
            calls = [ProcedureCall("complete", batch, 0, len(completions)), ProcedureCall("record_cost", batch, 0, 0)]
            answer = await self._write(lambda connection, now: call_procedures(connection, calls, now)[0])
        else:
            batch = encode([build_completion_item(completion) for completion in completions])
            answer = await self._writer.call("complete", batch, argument=len(completions))
        answers = [CompletionAnswer.ACCEPTED] * len(completions)
        for rejected in decode_rejected(answer):
            answers[rejected.index] = rejected.answer
        return answers

    async def close_session(self, session: SessionId) -> None:
        await self._writer.call("close_session", session=session)
