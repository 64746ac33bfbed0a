"""Sessions, heartbeats, claims and completions."""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import asyncpg
import msgspec

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.completion import Completion, CompletionAnswer
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.model.runs.usage import AttemptCost
from mainspring.core.ports.storage.answers import HeartbeatAnswer
from mainspring.core.store import Demand, NewSession
from mainspring.stores.postgres.codes import OUTCOME_CODES, SESSION_KINDS, STATE_CODES, NameKind
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.names import UnknownName
from mainspring.stores.postgres.rank_floors import RankFloors
from mainspring.stores.postgres.rows import build_held_runs
from mainspring.stores.postgres.work.dependencies import FEW, DependencyMixin
from mainspring.stores.postgres.work.queues import ClaimScope, QueueMixin

_NOTHING = AttemptCost()


class WorkerMixin(QueueMixin, DependencyMixin):
    #: Something was paused, or a tenant had a quota, when this process last looked: claims then check both at once.
    _limited = False
    #: Sessions that had claim groups of their own, or met limits per period, when this process last looked. Claims then
    #: start with the statement for those.
    _with_groups: set[SessionId]
    #: Where claims start to search queues, and the task that checks whether that is still right.
    _ranks: RankFloors
    _looking: asyncio.Task[None] | None = None

    async def open_session(self, session: NewSession) -> SessionId:
        rows = await self._db.fetch(
            "open_session",
            kind=SESSION_KINDS[session.kind],
            name=session.name,
            datacenter=session.datacenter,
            version=session.version,
            ttl=session.ttl,
            queues=session.queues,
            tasks=session.tasks,
            owner=session.owner,
            serves=session.serves,
            labels=session.labels,
            priorities=session.priorities,
            slots=session.slots,
        )
        if session.labels:
            await self._db.execute("grant_claim_groups", session=rows[0]["id"])
        return SessionId(rows[0]["id"])

    async def close_session(self, session: SessionId) -> None:
        await self._db.execute("close_session", session=session)
        self._with_groups.discard(session)

    async def heartbeat(
        self, session: SessionId, ttl: Micros, held: Collection[RunId], pending: Collection[int], last_claim: int
    ) -> HeartbeatAnswer:
        row = (
            await self._db.fetch(
                "heartbeat", session=session, ttl=ttl, held=list(held), pending=list(pending), last_claim=last_claim
            )
        )[0]
        if row["other_unknown"]:
            # No process runs these. The next heartbeat finds runs that are missed here.
            await self._release_unknown(session, row["other_unknown"], last_claim)
        return HeartbeatAnswer(
            now=row["now"],
            alive=row["alive"],
            cancels=tuple(row["cancels"]),
            returned=row["returned"] + len(row["other_unknown"]),
            draining=row["draining"],
        )

    async def renew_leases(self, leases: Sequence[tuple[SessionId, Micros]]) -> list[HeartbeatAnswer]:
        rows = await self._db.fetch(
            "renew_leases", sessions=[session for session, _ in leases], ttls=[ttl for _, ttl in leases]
        )
        draining = {row["id"]: row["draining"] for row in rows if row["id"] is not None}
        now = rows[0]["now"]
        return [
            HeartbeatAnswer(now=now, alive=session in draining, draining=draining.get(session, False))
            for session, _ in leases
        ]

    async def _release_unknown(self, session: SessionId, runs: list[RunId], last_claim: int) -> None:
        rows = await self._db.fetch("fences", runs=runs, session=session, last_claim=last_claim)
        await self.complete(
            [
                Completion(
                    run=RunId(row["id"]),
                    fence=row["fence"],
                    outcome=Outcome.RELEASED,
                    state=RunState.QUEUED,
                    reason="released",
                    unblocks_others=True,
                )
                for row in rows
            ]
        )

    async def claim(self, session: SessionId, number: int, demands: Sequence[Demand]) -> list[HeldRun]:
        demands = [demand for demand in demands if demand.limit > 0]
        if not demands:
            return []
        await self._names.assign_numbers((NameKind.QUEUE, demand.queue) for demand in demands)
        await self._mark_pooled(demands)
        if self._policed and any(demand.queue in self._policed for demand in demands):
            policed = [demand for demand in demands if demand.queue in self._policed]
            held = await self._claim_policed(session, number, policed)
            others = [demand for demand in demands if demand not in policed]
            return held + await self.claim(session, number, others)
        if self._limited or any(demand.tenant is not None for demand in demands):
            return await self._claim_closely(session, number, demands)
        with_groups = session in self._with_groups
        rows = await (self._claim_from_groups if with_groups else self._claim)(session, number, demands)
        if not rows:
            # The statements find nothing in a queue with a pause or a quota. `_claim` also finds nothing for sessions
            # with claim groups, or with limits per period.
            queues = [self._names.get_number(NameKind.QUEUE, demand.queue) for demand in demands]
            why = (await self._db.fetch("explain_empty_claim", session=session, queues=queues))[0]
            if why["policed"]:
                # If one queue has a policy they find nothing in any: claim again, each queue in its own way.
                self._policed |= {self._names.get_name(queue) for queue in why["policed"]}
                return await self.claim(session, number, demands)
            (self._with_groups.add if why["for_lanes"] else self._with_groups.discard)(session)
            if why["limited"]:
                return await self._claim_closely(session, number, demands)
            if why["for_lanes"] and not with_groups:
                rows = await self._claim_from_groups(session, number, demands)
        return await self._held(rows)

    async def _claim(self, session: SessionId, number: int, demands: Sequence[Demand]) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = []
        hinted = [demand for demand in demands if demand.runs is not None]
        if hinted:
            queues = [self._names.get_number(NameKind.QUEUE, demand.queue) for demand in hinted]
            runs = [run for demand in hinted for run in demand.runs or ()]
            rows = await self._db.fetch("claim_hinted", session=session, claim=number, queues=queues, runs=runs)
            demands = [demand for demand in demands if demand.runs is None]
        if demands:
            queues = [self._names.get_number(NameKind.QUEUE, demand.queue) for demand in demands]
            limits = [demand.limit for demand in demands]
            began = self._ranks.read_clock()
            found = await self._db.fetch(
                "claim",
                session=session,
                claim=number,
                queues=queues,
                limits=limits,
                start_ranks=self._ranks.get_start_ranks(queues),
            )
            self._ranks.record_claim((row["queue"], row["rank"]) for row in found)
            rows += found
            if self._ranks.needs_lookup(began) and (self._looking is None or self._looking.done()):
                # Beside the claims: no claim has to wait for it.
                self._looking = asyncio.create_task(self._look_from_front(queues), name="look-from-front")
        return rows

    async def _look_from_front(self, queues: Sequence[int]) -> None:
        try:
            dead = {row["relname"]: row["dead"] for row in await self._db.fetch("dead_rows")}
            began = self._ranks.read_clock()
            rows = await self._db.fetch("lowest_ranks", queues=queues)
        except StoreUnavailable:
            # The next claim raises the error.
            return
        self._ranks.record_lookup(began, dead["run"], {row["queue"]: row["rank"] for row in rows})

    async def _claim_from_groups(
        self, session: SessionId, number: int, demands: Sequence[Demand]
    ) -> list[asyncpg.Record]:
        limits: Counter[int] = Counter()
        for demand in demands:
            limits[self._names.get_number(NameKind.QUEUE, demand.queue)] += demand.limit
        rows = await self._db.fetch(
            "claim_from_groups", session=session, claim=number, queues=list(limits), limits=list(limits.values())
        )
        limits.subtract(row["queue"] for row in rows)
        left = +limits
        if rows and left:
            # Make up from other claim groups for runs that other workers have taken meanwhile.
            rows += await self._db.fetch(
                "claim_from_groups", session=session, claim=number, queues=list(left), limits=list(left.values())
            )
        return rows

    async def _claim_policed(self, session: SessionId, number: int, demands: Sequence[Demand]) -> list[HeldRun]:
        """Claim from queues with a policy that a claim must check."""
        tenants = {
            demand.tenant: await self._names.find_number(NameKind.TENANT, demand.tenant)
            for demand in demands
            if demand.tenant
        }
        demands = [demand for demand in demands if demand.tenant is None or tenants[demand.tenant] is not None]

        async def work(connection: Connection) -> list[asyncpg.Record]:
            found = await connection.fetchrow(*self._db.sql["claiming_session"].bind(session=session))
            if found is None:
                return []
            queues = [self._names.get_number(NameKind.QUEUE, demand.queue) for demand in demands]
            paused = await self._paused(connection, set(queues))
            room = await self._rooms(connection, [tenants.get(demand.tenant or "") for demand in demands])
            scopes = [
                ClaimScope(
                    queue,
                    demand,
                    found["claim_groups"] or (),
                    tenants.get(demand.tenant or ""),
                    paused.get(queue, set()),
                    room,
                )
                for queue, demand in zip(queues, demands, strict=True)
            ]
            chosen = await self._choose(connection, scopes)
            if not chosen:
                return []
            return await connection.fetch(
                *self._db.sql["claim_chosen"].bind(session=session, claim=number, runs=chosen)
            )

        held = await self._held(await self._db.transaction(work)) if demands else []
        for run in held:
            run.limited = run.queue in self._bounded
        return held

    async def _claim_closely(self, session: SessionId, number: int, demands: Sequence[Demand]) -> list[HeldRun]:
        """Claim where something is paused, a tenant has a quota, or only one tenant's runs are wanted."""
        numbers = [self._names.get_number(NameKind.QUEUE, demand.queue) for demand in demands]
        policed = await self._db.fetch("policed", queues=numbers)
        if policed:
            self._policed |= {self._names.get_name(row["queue"]) for row in policed}
            return await self.claim(session, number, demands)
        scopes: list[tuple[int, int | None, int]] = []
        for demand in demands:
            tenant = None if demand.tenant is None else await self._names.find_number(NameKind.TENANT, demand.tenant)
            if demand.tenant is None or tenant is not None:
                scopes.append((self._names.get_number(NameKind.QUEUE, demand.queue), tenant, demand.limit))

        async def work(connection: Connection) -> list[asyncpg.Record]:
            found = await connection.fetchrow(*self._db.sql["claiming_session"].bind(session=session))
            if found is None:
                return []
            claim_groups = [0, *(found["claim_groups"] or ())]
            paused = await self._paused(connection, {queue for queue, _, _ in scopes})
            room = await self._rooms(connection, [tenant for _, tenant, _ in scopes])
            chosen: list[RunId] = []
            for queue, tenant, limit in scopes:
                left_out = paused.get(queue, set())
                if 0 not in left_out:
                    chosen += await self._best(connection, queue, claim_groups, tenant, limit, left_out, room, chosen)
            self._limited = bool(room) or await connection.fetchval(*self._db.sql["is_limited"].bind())
            if not chosen:
                return []
            return await connection.fetch(
                *self._db.sql["claim_chosen"].bind(session=session, claim=number, runs=chosen)
            )

        return await self._held(await self._db.transaction(work)) if scopes else []

    async def _paused(self, connection: Connection, queues: set[int]) -> dict[int, set[int]]:
        """Return the paused tenants, by queue; 0 means all tenants."""
        paused: dict[int, set[int]] = {}
        for row in await connection.fetch(*self._db.sql["paused_tenants"].bind(queues=sorted(queues))):
            for queue in queues if row["queue"] == 0 else [row["queue"]]:
                paused.setdefault(queue, set()).add(row["tenant"])
        return paused

    async def _rooms(self, connection: Connection, tenants: list[int | None]) -> dict[int, int]:
        """Return how many more runs may start, for tenants with a quota. Their quotas are locked until the commit."""
        asked = None if None in tenants else sorted({tenant for tenant in tenants if tenant is not None})
        quotas = {
            row["number"]: row["running"]
            for row in await connection.fetch(*self._db.sql["lock_quotas"].bind(tenants=asked))
        }
        if not quotas:
            return {}
        rows = await connection.fetch(*self._db.sql["running_by_tenant"].bind(tenants=list(quotas)))
        running = {row["tenant"]: row["running"] for row in rows}
        return {tenant: quota - running.get(tenant, 0) for tenant, quota in quotas.items()}

    async def _best(
        self,
        connection: Connection,
        queue: int,
        claim_groups: Sequence[int],
        tenant: int | None,
        limit: int,
        paused: set[int],
        room: dict[int, int],
        chosen: Sequence[RunId],
    ) -> list[RunId]:
        """Return the best runs of a queue.

        Tenants without room do not use up the limit: the other tenants are queried again.
        """
        best: list[RunId] = []
        while len(best) < limit:
            full = {number for number, left in room.items() if left <= 0}
            rows: list[asyncpg.Record] = []
            for claim_group in claim_groups:
                rows += await connection.fetch(
                    *self._db.sql["best_runs"].bind(
                        queue=queue,
                        tenant=tenant,
                        excluded_tenants=sorted(paused | full),
                        excluded_runs=[*chosen, *best],
                        limit=limit - len(best),
                        claim_group=claim_group,
                    ),
                )
            if len(claim_groups) > 1:
                rows.sort(key=lambda row: (row["rank"], row["id"]))
            refused = False
            for row in rows[: limit - len(best)]:
                left = room.get(row["tenant"])
                if left is not None and left <= 0:
                    refused = True
                    continue
                if left is not None:
                    room[row["tenant"]] = left - 1
                best.append(RunId(row["id"]))
            if not refused:
                break
        return best

    async def _held(self, rows: list[asyncpg.Record]) -> list[HeldRun]:
        try:
            held, unreadable = build_held_runs(rows, self._names, self._policies)
        except UnknownName:
            # Another process has added a name since the names were read.
            await self._names.load_names([0])
            held, unreadable = build_held_runs(rows, self._names, self._policies)
        await self.complete(unreadable)
        return held

    async def complete(self, completions: Sequence[Completion]) -> list[CompletionAnswer]:
        if not completions:
            return []
        first, again = _once_each(completions)
        if again:
            # A statement ends a run only once: its second completion, perhaps with another fence, comes afterwards.
            answers = dict(zip(first, await self.complete([completions[index] for index in first]), strict=True))
            answers |= dict(zip(again, await self.complete([completions[index] for index in again]), strict=True))
            return [answers[index] for index in range(len(completions))]
        applied: set[tuple[str, int]] = set()
        free = [completion for completion in completions if not completion.unblocks_others]
        succeeded = [completion for completion in free if completion.outcome is Outcome.SUCCESS]
        has_children = False
        if succeeded:
            rows = await self._db.fetch("complete_succeeded", **_succeeded(succeeded))
            applied |= _applied(rows, succeeded)
            has_children = _any_has_children(rows)
        if len(succeeded) < len(free):
            others = [completion for completion in free if completion.outcome is not Outcome.SUCCESS]
            rows = await self._db.fetch("complete_others", **_others(others))
            applied |= _applied(rows, others)
            has_children |= _any_has_children(rows)
        if len(free) < len(completions):
            keyed = [completion for completion in completions if completion.unblocks_others]
            rows, queues = await self._db.transaction(lambda connection: self._complete_keyed(connection, keyed))
            applied |= _applied(rows, keyed)
            has_children |= _any_has_children(rows)
            await self._notify(queues)
        if has_children:
            # A few children are resolved at once. The next call of ``resolve`` handles the rest.
            await self.resolve(FEW)
        if len(applied) == len(completions):
            return [CompletionAnswer.ACCEPTED] * len(completions)
        return await self._read_answers(completions, applied)

    async def _complete_keyed(
        self, connection: Connection, completions: list[Completion]
    ) -> tuple[list[asyncpg.Record], Counter[int]]:
        """Complete runs that let others pass; return the rows that ended, and how many others were queued, by queue."""
        rows = await connection.fetch(*self._db.sql["complete_others"].bind(**_others(completions)))
        return rows, await self._release_runs(connection, rows)

    async def _read_answers(
        self, completions: Sequence[Completion], applied: set[tuple[str, int]]
    ) -> list[CompletionAnswer]:
        missed = [item for item in completions if (item.run, item.fence) not in applied]
        rows = await self._db.fetch(
            "find_completed",
            runs=[item.run for item in missed],
            fences=[item.fence for item in missed],
            outcomes=[OUTCOME_CODES[item.outcome] for item in missed],
        )
        before = {(row["id"], row["fence"]) for row in rows}
        answers = []
        for item in completions:
            key = (item.run, item.fence)
            if key in applied:
                answers.append(CompletionAnswer.ACCEPTED)
            else:
                answers.append(CompletionAnswer.DUPLICATE if key in before else CompletionAnswer.STALE)
        return answers


def _once_each(completions: Sequence[Completion]) -> tuple[list[int], list[int]]:
    """Return the positions where each run appears for the first time, and where it appears again."""
    if len({item.run for item in completions}) == len(completions):
        return [], []
    first = {item.run: index for index, item in reversed(list(enumerate(completions)))}
    scopes = sorted(first.values())
    return scopes, [index for index, item in enumerate(completions) if first[item.run] != index]


def _succeeded(completions: list[Completion]) -> dict[str, Any]:
    has_results = any(item.result is not None for item in completions)
    return {
        "runs": [item.run for item in completions],
        "fences": [item.fence for item in completions],
        "results": [item.result for item in completions] if has_results else None,
        **_spent(completions),
    }


def _spent(completions: list[Completion]) -> dict[str, Any]:
    """Return the columns of CPU and units, or None for a column that no completion reports."""
    if all(item.spent is None for item in completions):
        return {"cpu": None, "units": None}
    spent = [item.spent or _NOTHING for item in completions]
    units = [msgspec.json.encode(item.units).decode() if item.units else None for item in spent]
    return {"cpu": [item.cpu for item in spent], "units": units if any(units) else None}


def _others(completions: list[Completion]) -> dict[str, Any]:
    # Sorted, so that two batches that share rows lock them in the same order.
    ordered = sorted(completions, key=lambda item: item.run)
    return {
        "runs": [item.run for item in ordered],
        "fences": [item.fence for item in ordered],
        "outcomes": [OUTCOME_CODES[item.outcome] for item in ordered],
        "states": [STATE_CODES[item.state] for item in ordered],
        "reasons": [item.reason for item in ordered],
        "delays": [item.delay for item in ordered],
        "errors": [item.error for item in ordered],
        "results": [item.result for item in ordered],
        "fingerprints": [item.fingerprint for item in ordered],
        **_spent(ordered),
    }


def _any_has_children(rows: list[asyncpg.Record]) -> bool:
    return any(row["has_children"] for row in rows)


def _applied(rows: list[asyncpg.Record], completions: list[Completion]) -> set[tuple[str, int]]:
    if len(rows) == len(completions):
        return {(item.run, item.fence) for item in completions}
    return {(row["id"], row["fence"]) for row in rows}
