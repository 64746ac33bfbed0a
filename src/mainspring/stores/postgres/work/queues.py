"""Queue policies, and claims from queues that have one."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import asyncpg
import msgspec

from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.limits.queues import NO_POLICY, Candidate, QueuePolicy, SlotRequest, TurnOrder, choose
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.ports.storage.access import Author
from mainspring.core.store import Demand
from mainspring.stores.changes import Change, what_differs
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin
from mainspring.stores.unreadable import UNREADABLE

#: A claim moves up to this many stray runs to their claim groups, or twice as many as it takes if that is more.
_STRAYS = 1_000
#: Seconds after which a process reads again which queues have claim groups. Runs that were put into the wrong group
#: meanwhile are moved.
_ASK_AGAIN = 1.0


class ClaimScope(msgspec.Struct, frozen=True):
    """Where a claim may look: a queue, and one of its tenants or all.

    It also has the tenants that are paused, and the room that their quotas leave.
    """

    queue: int
    demand: Demand
    claim_groups: Sequence[int]
    tenant: int | None
    paused: set[int]
    room: dict[int, int]


class ClaimGroup(msgspec.Struct, frozen=True):
    """Runs of a queue that one claim may take together: by tenant, label set and priority; 0 is any."""

    tenant: int
    base: int
    priority: int

    def is_stray(self, *, fair: bool, pooled: bool) -> bool:
        """Whether its runs belong to another claim group. A claim group that is finer than necessary is not a stray."""
        return (fair and not self.tenant) or (pooled and not self.priority)


class QueueMixin(PostgresMixin):
    #: Queues with a policy that a claim must check, when this process last looked.
    _policed: set[str]
    #: Queues with a policy that limits how many of their runs are running at once.
    _bounded: set[str]
    #: Number of each queue with claim groups → whether it has some per tenant and per priority; and when that was read.
    _grouped: Mapping[int, tuple[bool, bool]] = {}
    _grouped_at: float = -_ASK_AGAIN
    #: Queues that the store knows may have runs with a weight above 1.
    _weighted: set[str]
    #: Queues for which the store knows that a worker has a slot pool per priority.
    _pooled: set[str]

    async def put_queue_policy(self, queue: str, policy: QueuePolicy, author: Author) -> None:
        policy.check()
        await self._names.assign_numbers([(NameKind.QUEUE, queue)])
        number = self._names.get_number(NameKind.QUEUE, queue)
        budget = policy.retries

        async def work(connection: Connection) -> None:
            before = read_policy(await connection.fetchval(*self._db.sql["queue_policy"].bind(queue=number)))
            await connection.execute(
                *self._db.sql["put_queue_policy"].bind(
                    queue=number,
                    policy=msgspec.json.encode(policy),
                    closely=policy.looks_closely,
                    fair=policy.fair,
                    retries=None if budget is None else budget.most,
                    per=None if budget is None else budget.per,
                ),
            )
            differs = what_differs(before.words(), policy.words())
            if differs is not None:
                await self._audit(connection, "queues.set", author, [Change("", queue, *differs)])

        # Claims in progress finish first.
        await self._db.transaction_alone("lock_queue_policies", work)
        self._grouped_at = -_ASK_AGAIN

    async def queue_policies(self) -> dict[str, QueuePolicy]:
        rows = await self._db.fetch("queue_policies")
        await self._names.load_names({row["queue"] for row in rows})
        policies = {self._names.get_name(row["queue"]): read_policy(row["policy"]) for row in rows}
        return {queue: policies[queue] for queue in sorted(policies) if policies[queue] != NO_POLICY}

    # Submitting

    async def _prepare_queues(self, runs: Sequence[NewRun]) -> None:
        """Before runs are made: mark queues that get heavy runs, and make the claim groups that the runs need."""
        await self._mark_weighted(run.queue for run in runs if run.policy.weight > 1)
        now = asyncio.get_running_loop().time()
        if now - self._grouped_at >= _ASK_AGAIN:
            self._grouped_at = now
            rows = await self._db.fetch("grouped_queues")
            self._grouped = {row["queue"]: (row["fair"], row["pooled"]) for row in rows}
        if self._grouped:
            await self._names.assign_numbers(
                (NameKind.CLAIM_GROUP, self._name_claim_group(run))
                for run in runs
                if run.target is None and self._is_grouped(run)
            )

    async def _mark_weighted(self, queues: Iterable[str]) -> None:
        """Mark queues before their first run with a weight above 1 is made."""
        new = set(queues) - self._weighted
        if new:
            await self._names.assign_numbers((NameKind.QUEUE, queue) for queue in new)
            await self._db.execute(
                "mark_weighted", queues=sorted(self._names.get_number(NameKind.QUEUE, queue) for queue in new)
            )
            self._weighted |= new

    def _is_grouped(self, run: NewRun) -> bool:
        return bool(self._grouped) and self._names.get_number(NameKind.QUEUE, run.queue) in self._grouped

    def _name_claim_group(self, run: NewRun) -> str:
        """Return the name of the run's claim group for its tenant or priority."""
        fair, pooled = self._grouped[self._names.get_number(NameKind.QUEUE, run.queue)]
        tenant = self._names.get_number(NameKind.TENANT, run.tenant) if fair else 0
        return f"{tenant}:{self._get_claim_group(run.policy)}:{run.priority if pooled else 0}"

    def _assign_claim_group(self, run: NewRun) -> int:
        if run.target is None and self._is_grouped(run):
            return self._names.get_number(NameKind.CLAIM_GROUP, self._name_claim_group(run))
        return self._get_claim_group(run.policy, run.target)

    async def _mark_pooled(self, demands: Sequence[Demand]) -> None:
        """Mark queues for which a worker has a slot pool per priority."""
        new = {demand.queue for demand in demands if demand.priority is not None} - self._pooled
        if new:
            await self._db.execute(
                "mark_pooled", queues=sorted(self._names.get_number(NameKind.QUEUE, queue) for queue in new)
            )
            self._pooled |= new
            self._policed |= new
            self._grouped_at = -_ASK_AGAIN

    def _get_claim_group(self, policy: RunPolicy, target: SessionId | None = None) -> int:
        raise NotImplementedError

    # Claiming

    async def _choose(self, connection: Connection, scopes: Sequence[ClaimScope]) -> list[RunId]:
        """Choose and lock the best runs of queues with policies. Each of these queues serves one claim at a time."""
        numbers = sorted({scope.queue for scope in scopes})
        rows = await connection.fetch(*self._db.sql["lock_policies"].bind(queues=numbers))
        policies = {row["queue"]: row for row in rows}
        for scope in scopes:
            if scope.queue not in policies:
                self._policed.discard(scope.demand.queue)
        for scope in scopes:
            row = policies.get(scope.queue)
            bounded = row is not None and read_policy(row["policy"]).concurrency is not None
            (self._bounded.add if bounded else self._bounded.discard)(scope.demand.queue)
        chosen: list[RunId] = []
        started: Counter[int] = Counter()
        for scope in scopes:
            if 0 not in scope.paused:
                row = policies.get(scope.queue)
                found = await self._choose_from(connection, scope, row, chosen, started[scope.queue])
                started[scope.queue] += len(found)
                chosen += [candidate.id for candidate in found]
        return chosen

    async def _choose_from(
        self,
        connection: Connection,
        scope: ClaimScope,
        row: asyncpg.Record | None,
        taken: Sequence[RunId],
        started: int,
    ) -> list[Candidate]:
        policy = NO_POLICY if row is None else read_policy(row["policy"])
        limit = most = scope.demand.limit
        if policy.concurrency is not None:
            running = await connection.fetchval(*self._db.sql["running_in_queue"].bind(queue=scope.queue))
            most = min(most, policy.concurrency - running - started)
        if most <= 0:
            return []
        names = self._names
        claim_groups = await self._find_claim_groups(connection, scope, row, fair=policy.fair)
        await names.load_names(
            {*scope.room, *(tenant for tenant in claim_groups.values() if tenant is not None)}, connection
        )
        groups: dict[str, list[int]] = {}
        for claim_group, tenant in claim_groups.items():
            groups.setdefault("" if tenant is None or not policy.fair else names.get_name(tenant), []).append(
                claim_group
            )
        room = {names.get_name(number): left for number, left in scope.room.items()}
        pick = _CandidateSearch(self, connection, scope, groups, row is not None and row["weighted"], taken)
        chosen: list[Candidate] = []
        if "" in groups:
            # Claim groups of a queue that is not fair, and the worker's own claim group.
            chosen += await pick.choose(limit, most, None, room)
            limit -= sum(min(candidate.weight, scope.demand.slots or limit) for candidate in chosen)
        if policy.fair and row is not None and limit > 0:
            rows = await connection.fetch(*self._db.sql["turns"].bind(queue=scope.queue, clock=row["clock"]))
            await names.load_names({tag["tenant"] for tag in rows}, connection)
            tags = {names.get_name(tag["tenant"]): tag["tag"] for tag in rows}
            turns = TurnOrder(row["clock"], tags, policy.shares, set(groups) - {""})
            chosen += await pick.choose(limit, most - len(chosen), turns, room)
            await self._save_turns(connection, scope.queue, turns)
        for number in scope.room:
            scope.room[number] = room[names.get_name(number)]
        return chosen

    async def _save_turns(self, connection: Connection, queue: int, turns: TurnOrder) -> None:
        kept = turns.kept()
        await connection.execute(*self._db.sql["set_clock"].bind(queue=queue, clock=turns.clock))
        if kept:
            numbers = [self._names.get_number(NameKind.TENANT, tenant) for tenant in kept]
            await connection.execute(
                *self._db.sql["set_turns"].bind(queue=queue, tenants=numbers, tags=list(kept.values()))
            )

    async def _find_claim_groups(
        self, connection: Connection, scope: ClaimScope, row: asyncpg.Record | None, *, fair: bool
    ) -> dict[int, int | None]:
        """Return the claim groups to search, each with its tenant if it has one."""
        allowed = {0, *scope.claim_groups}
        pooled = row is not None and row["pooled"]
        if row is None or not row["grouped"]:
            return dict.fromkeys(allowed)
        rows = await connection.fetch(*self._db.sql["active_claim_groups"].bind(queue=scope.queue))
        strays = [
            (row["claim_group"], claim_group.base)
            for row in rows
            if row["claim_group"] >= 0 and (claim_group := _parse_claim_group(row)).is_stray(fair=fair, pooled=pooled)
        ]
        if strays:
            arguments = {
                "queue": scope.queue,
                "claim_groups": [claim_group for claim_group, _ in strays],
                "bases": [base for _, base in strays],
                "limit": max(_STRAYS, 2 * scope.demand.limit),
                "fair": fair,
                "pooled": pooled,
            }
            await connection.execute(*self._db.sql["name_claim_groups"].bind(**arguments))
            await connection.execute(*self._db.sql["move_to_claim_groups"].bind(**arguments))
            rows = await connection.fetch(*self._db.sql["active_claim_groups"].bind(queue=scope.queue))
        claim_groups: dict[int, int | None] = {}
        for row in rows:
            claim_group = _parse_claim_group(row)
            if claim_group.base not in allowed or (
                row["claim_group"] >= 0 and claim_group.is_stray(fair=fair, pooled=pooled)
            ):
                continue
            if claim_group.tenant in scope.paused or (
                scope.tenant is not None and claim_group.tenant not in (0, scope.tenant)
            ):
                continue
            if scope.demand.priority is None or claim_group.priority in (0, scope.demand.priority):
                claim_groups[row["claim_group"]] = claim_group.tenant or None
        return claim_groups

    def _weight(self, policy: bytes | None) -> int:
        try:
            return self._policies.decode(policy).weight
        except UNREADABLE:
            return 1


class _CandidateSearch:
    """Runs a choice and fetches the candidates that it asks for."""

    def __init__(
        self,
        queues: QueueMixin,
        connection: Connection,
        scope: ClaimScope,
        groups: Mapping[str, list[int]],
        weighted: bool,
        taken: Sequence[RunId],
    ) -> None:
        self._queues = queues
        self._connection = connection
        self._scope = scope
        self._groups = groups
        self._weighted = weighted
        self._taken = list(taken)

    async def choose(self, limit: int, most: int, turns: TurnOrder | None, room: dict[str, int]) -> list[Candidate]:
        choice = choose(limit, self._scope.demand.slots, most, turns, room)
        try:
            wanted = next(choice)
            while True:
                wanted = choice.send(await self._fetch(wanted))
        except StopIteration as end:
            chosen: list[Candidate] = end.value
            self._taken += [candidate.id for candidate in chosen]
            return chosen

    async def _fetch(self, wanted: SlotRequest) -> dict[str, list[Candidate]]:
        queues, scope = self._queues, self._scope
        names = queues._names
        asked = [
            (claim_group, count, group) for group, count in wanted.most.items() for claim_group in self._groups[group]
        ]
        group_of = {claim_group: group for claim_group, _, group in asked}
        full = scope.paused | {names.get_number(NameKind.TENANT, tenant) for tenant in wanted.full}
        rows = await self._connection.fetch(
            *queues._db.sql["best_of_claim_groups"].bind(
                queue=scope.queue,
                claim_groups=[claim_group for claim_group, _, _ in asked],
                limits=[count for _, count, _ in asked],
                tenant=scope.tenant,
                excluded_tenants=sorted(full),
                excluded_runs=[*self._taken, *wanted.seen],
                weighted=self._weighted,
                priority=scope.demand.priority,
            ),
        )
        await names.load_names({row["tenant"] for row in rows}, self._connection)
        found: dict[str, list[Candidate]] = {group: [] for group in wanted.most}
        for row in rows:
            group = group_of[row["claim_group"]]
            if len(found[group]) < wanted.most[group]:
                weight = queues._weight(row["policy"]) if self._weighted else 1
                found[group].append(Candidate(RunId(row["id"]), names.get_name(row["tenant"]), row["rank"], weight))
        return found


def _parse_claim_group(row: asyncpg.Record) -> ClaimGroup:
    return (
        ClaimGroup(0, row["claim_group"], 0) if row["name"] is None else ClaimGroup(*map(int, row["name"].split(":")))
    )


def read_policy(encoded: bytes | None) -> QueuePolicy:
    """Decode a queue policy.

    A policy that this program cannot read, such as a newer program's, counts as none and blocks no run.
    """
    try:
        return NO_POLICY if encoded is None else msgspec.json.decode(encoded, type=QueuePolicy)
    except UNREADABLE:
        return NO_POLICY
