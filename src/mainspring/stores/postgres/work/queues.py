"""Queue policies, and claims from queues that have one."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import asyncpg
import msgspec

from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.limits.queues import NO_POLICY, Candidate, QueuePolicy, Turns, Wanted, choose
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.ports.storage.access import Author
from mainspring.core.store import Demand
from mainspring.stores.changes import Change, what_differs
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin
from mainspring.stores.unreadable import UNREADABLE

#: A claim moves up to this many stray runs to their lanes, or twice as many as it takes if that is more.
_STRAYS = 1_000
#: Seconds after which a process reads again which queues have lanes. Runs put into the wrong lane meanwhile are moved.
_ASK_AGAIN = 1.0


class ClaimScope(msgspec.Struct, frozen=True):
    """Where a claim may look: a queue, and one of its tenants or all.

    It also has the tenants that are paused, and the room that their quotas leave.
    """

    queue: int
    demand: Demand
    lanes: Sequence[int]
    tenant: int | None
    paused: set[int]
    room: dict[int, int]


class ClaimGroup(msgspec.Struct, frozen=True):
    """A lane as its name describes it: tenant, base lane and priority; 0 is any."""

    tenant: int
    base: int
    priority: int

    def is_stray(self, *, fair: bool, pooled: bool) -> bool:
        """Whether its runs belong to another lane. A lane that is finer than necessary is not a stray."""
        return (fair and not self.tenant) or (pooled and not self.priority)


class QueueMixin(PostgresMixin):
    #: Queues with a policy that a claim must check, when this process last looked.
    _policed: set[str]
    #: Queues with a policy that limits how many of their runs are running at once.
    _bounded: set[str]
    #: Number of each queue with lanes → whether it has lanes per tenant and per priority; and when that was read.
    _laned: Mapping[int, tuple[bool, bool]] = {}
    _laned_at: float = -_ASK_AGAIN
    #: Queues that the store knows may have runs with a weight above 1.
    _weighted: set[str]
    #: Queues for which the store knows that a worker has a slot pool per priority.
    _pooled: set[str]

    async def put_queue_policy(self, queue: str, policy: QueuePolicy, author: Author) -> None:
        policy.check()
        await self._names.number_all([(NameKind.QUEUE, queue)])
        number = self._names.number(NameKind.QUEUE, queue)
        budget = policy.retries

        async def work(connection: Connection) -> None:
            # Claims in progress finish first. Other claims wait behind this lock, so it must not wait long.
            await connection.execute("SET LOCAL lock_timeout = '500ms'")
            await connection.execute(*self._db.sql["lock_queue_policies"].bind())
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

        await self._db.transaction(work)
        self._laned_at = -_ASK_AGAIN

    async def queue_policies(self) -> dict[str, QueuePolicy]:
        rows = await self._db.fetch("queue_policies")
        await self._names.name_all({row["queue"] for row in rows})
        policies = {self._names.name(row["queue"]): read_policy(row["policy"]) for row in rows}
        return {queue: policies[queue] for queue in sorted(policies) if policies[queue] != NO_POLICY}

    # Submitting

    async def _mind_policies(self, runs: Sequence[NewRun]) -> None:
        """Before runs are made: mark queues that get heavy runs, and make the lanes that the runs need."""
        await self._mark_weighted(run.queue for run in runs if run.policy.weight > 1)
        now = asyncio.get_running_loop().time()
        if now - self._laned_at >= _ASK_AGAIN:
            self._laned_at = now
            rows = await self._db.fetch("laned_queues")
            self._laned = {row["queue"]: (row["fair"], row["pooled"]) for row in rows}
        if self._laned:
            await self._names.number_all(
                (NameKind.CLAIM_GROUP, self._turn(run)) for run in runs if run.target is None and self._is_laned(run)
            )

    async def _mark_weighted(self, queues: Iterable[str]) -> None:
        """Mark queues before their first run with a weight above 1 is made."""
        new = set(queues) - self._weighted
        if new:
            await self._names.number_all((NameKind.QUEUE, queue) for queue in new)
            await self._db.execute(
                "mark_weighted", queues=sorted(self._names.number(NameKind.QUEUE, queue) for queue in new)
            )
            self._weighted |= new

    def _is_laned(self, run: NewRun) -> bool:
        return bool(self._laned) and self._names.number(NameKind.QUEUE, run.queue) in self._laned

    def _turn(self, run: NewRun) -> str:
        """Return the name of the run's lane for its tenant or priority."""
        fair, pooled = self._laned[self._names.number(NameKind.QUEUE, run.queue)]
        tenant = self._names.number(NameKind.TENANT, run.tenant) if fair else 0
        return f"{tenant}:{self._lane(run.policy)}:{run.priority if pooled else 0}"

    def _lane_of(self, run: NewRun) -> int:
        if run.target is None and self._is_laned(run):
            return self._names.number(NameKind.CLAIM_GROUP, self._turn(run))
        return self._lane(run.policy, run.target)

    async def _mark_pooled(self, demands: Sequence[Demand]) -> None:
        """Mark queues for which a worker has a slot pool per priority."""
        new = {demand.queue for demand in demands if demand.priority is not None} - self._pooled
        if new:
            await self._db.execute(
                "mark_pooled", queues=sorted(self._names.number(NameKind.QUEUE, queue) for queue in new)
            )
            self._pooled |= new
            self._policed |= new
            self._laned_at = -_ASK_AGAIN

    def _lane(self, policy: RunPolicy, target: SessionId | None = None) -> int:
        raise NotImplementedError

    # Claiming

    async def _choose(self, connection: Connection, places: Sequence[ClaimScope]) -> list[RunId]:
        """Choose and lock the best runs of queues with policies. Each of these queues serves one claim at a time."""
        numbers = sorted({place.queue for place in places})
        rows = await connection.fetch(*self._db.sql["lock_policies"].bind(queues=numbers))
        policies = {row["queue"]: row for row in rows}
        for place in places:
            if place.queue not in policies:
                self._policed.discard(place.demand.queue)
        for place in places:
            row = policies.get(place.queue)
            bounded = row is not None and read_policy(row["policy"]).concurrency is not None
            (self._bounded.add if bounded else self._bounded.discard)(place.demand.queue)
        chosen: list[RunId] = []
        started: Counter[int] = Counter()
        for place in places:
            if 0 not in place.paused:
                row = policies.get(place.queue)
                found = await self._choose_from(connection, place, row, chosen, started[place.queue])
                started[place.queue] += len(found)
                chosen += [candidate.id for candidate in found]
        return chosen

    async def _choose_from(
        self,
        connection: Connection,
        place: ClaimScope,
        row: asyncpg.Record | None,
        taken: Sequence[RunId],
        started: int,
    ) -> list[Candidate]:
        policy = NO_POLICY if row is None else read_policy(row["policy"])
        limit = most = place.demand.limit
        if policy.concurrency is not None:
            running = await connection.fetchval(*self._db.sql["running_of_queue"].bind(queue=place.queue))
            most = min(most, policy.concurrency - running - started)
        if most <= 0:
            return []
        names = self._names
        lanes = await self._lanes_of(connection, place, row, fair=policy.fair)
        await names.name_all({*place.room, *(tenant for tenant in lanes.values() if tenant is not None)}, connection)
        groups: dict[str, list[int]] = {}
        for lane, tenant in lanes.items():
            groups.setdefault("" if tenant is None or not policy.fair else names.name(tenant), []).append(lane)
        room = {names.name(number): left for number, left in place.room.items()}
        pick = _CandidateSearch(self, connection, place, groups, row is not None and row["weighted"], taken)
        chosen: list[Candidate] = []
        if "" in groups:
            # Lanes of a queue that is not fair, and the worker's own lane.
            chosen += await pick.choose(limit, most, None, room)
            limit -= sum(min(candidate.weight, place.demand.slots or limit) for candidate in chosen)
        if policy.fair and row is not None and limit > 0:
            rows = await connection.fetch(*self._db.sql["turns"].bind(queue=place.queue, clock=row["clock"]))
            await names.name_all({tag["tenant"] for tag in rows}, connection)
            tags = {names.name(tag["tenant"]): tag["tag"] for tag in rows}
            turns = Turns(row["clock"], tags, policy.shares, set(groups) - {""})
            chosen += await pick.choose(limit, most - len(chosen), turns, room)
            await self._save_turns(connection, place.queue, turns)
        for number in place.room:
            place.room[number] = room[names.name(number)]
        return chosen

    async def _save_turns(self, connection: Connection, queue: int, turns: Turns) -> None:
        kept = turns.kept()
        await connection.execute(*self._db.sql["set_clock"].bind(queue=queue, clock=turns.clock))
        if kept:
            numbers = [self._names.number(NameKind.TENANT, tenant) for tenant in kept]
            await connection.execute(
                *self._db.sql["set_turns"].bind(queue=queue, tenants=numbers, tags=list(kept.values()))
            )

    async def _lanes_of(
        self, connection: Connection, place: ClaimScope, row: asyncpg.Record | None, *, fair: bool
    ) -> dict[int, int | None]:
        """Return the lanes to search, each with its tenant if it has one."""
        allowed = {0, *place.lanes}
        pooled = row is not None and row["pooled"]
        if row is None or not row["laned"]:
            return dict.fromkeys(allowed)
        rows = await connection.fetch(*self._db.sql["active_lanes"].bind(queue=place.queue))
        strays = [
            (row["lane"], lane.base)
            for row in rows
            if row["lane"] >= 0 and (lane := _lane_read(row)).is_stray(fair=fair, pooled=pooled)
        ]
        if strays:
            arguments = {
                "queue": place.queue,
                "lanes": [lane for lane, _ in strays],
                "bases": [base for _, base in strays],
                "limit": max(_STRAYS, 2 * place.demand.limit),
                "fair": fair,
                "pooled": pooled,
            }
            await connection.execute(*self._db.sql["name_lanes"].bind(**arguments))
            await connection.execute(*self._db.sql["sort_lanes"].bind(**arguments))
            rows = await connection.fetch(*self._db.sql["active_lanes"].bind(queue=place.queue))
        lanes: dict[int, int | None] = {}
        for row in rows:
            lane = _lane_read(row)
            if lane.base not in allowed or (row["lane"] >= 0 and lane.is_stray(fair=fair, pooled=pooled)):
                continue
            if lane.tenant in place.paused or (place.tenant is not None and lane.tenant not in (0, place.tenant)):
                continue
            if place.demand.priority is None or lane.priority in (0, place.demand.priority):
                lanes[row["lane"]] = lane.tenant or None
        return lanes

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
        place: ClaimScope,
        groups: Mapping[str, list[int]],
        weighted: bool,
        taken: Sequence[RunId],
    ) -> None:
        self._queues = queues
        self._connection = connection
        self._place = place
        self._groups = groups
        self._weighted = weighted
        self._taken = list(taken)

    async def choose(self, limit: int, most: int, turns: Turns | None, room: dict[str, int]) -> list[Candidate]:
        choice = choose(limit, self._place.demand.slots, most, turns, room)
        try:
            wanted = next(choice)
            while True:
                wanted = choice.send(await self._fetch(wanted))
        except StopIteration as end:
            chosen: list[Candidate] = end.value
            self._taken += [candidate.id for candidate in chosen]
            return chosen

    async def _fetch(self, wanted: Wanted) -> dict[str, list[Candidate]]:
        queues, place = self._queues, self._place
        names = queues._names
        asked = [(lane, count, group) for group, count in wanted.most.items() for lane in self._groups[group]]
        group_of = {lane: group for lane, _, group in asked}
        full = place.paused | {names.number(NameKind.TENANT, tenant) for tenant in wanted.full}
        rows = await self._connection.fetch(
            *queues._db.sql["best_of_lanes"].bind(
                queue=place.queue,
                lanes=[lane for lane, _, _ in asked],
                limits=[count for _, count, _ in asked],
                tenant=place.tenant,
                excluded_tenants=sorted(full),
                excluded_runs=[*self._taken, *wanted.seen],
                weighted=self._weighted,
                priority=place.demand.priority,
            ),
        )
        await names.name_all({row["tenant"] for row in rows}, self._connection)
        found: dict[str, list[Candidate]] = {group: [] for group in wanted.most}
        for row in rows:
            group = group_of[row["lane"]]
            if len(found[group]) < wanted.most[group]:
                weight = queues._weight(row["policy"]) if self._weighted else 1
                found[group].append(Candidate(RunId(row["id"]), names.name(row["tenant"]), row["rank"], weight))
        return found


def _lane_read(row: asyncpg.Record) -> ClaimGroup:
    return ClaimGroup(0, row["lane"], 0) if row["name"] is None else ClaimGroup(*map(int, row["name"].split(":")))


def read_policy(encoded: bytes | None) -> QueuePolicy:
    """Decode a queue policy.

    A policy that this program cannot read, such as a newer program's, counts as none and blocks no run.
    """
    try:
        return NO_POLICY if encoded is None else msgspec.json.decode(encoded, type=QueuePolicy)
    except UNREADABLE:
        return NO_POLICY
