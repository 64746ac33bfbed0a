"""Queue policies, and claims from queues that have one."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import cast

import apsw
import msgspec

from mainspring.core.model.access.access import DEFAULT_TENANT
from mainspring.core.model.base.ids import RunId, SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.queues import NO_POLICY, Candidate, QueuePolicy, SlotRequest, TurnOrder, choose, made
from mainspring.core.ports.storage.access import Author
from mainspring.core.store import Demand
from mainspring.stores.changes import Change, what_differs
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.fetch import fetch_texts
from mainspring.stores.sqlite.records.audit import write_audit
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.threads import ProcedureCall, call_procedures

#: Seconds between reads of the set of queues with a policy.
_REFRESH_SECONDS = 1.0
#: Created when the first queue becomes fair: covers the default tenant, which the other index leaves out.
_INDEX = (
    "CREATE INDEX IF NOT EXISTS run_turn ON run (queue, claim_group, rank, id)"
    " WHERE state = 'queued' AND tenant = 'default'"
)
_READY = (
    "SELECT r.id, r.tenant, r.rank, {weight} FROM run r INDEXED BY {index}"
    " WHERE r.state = 'queued' AND r.queue = :queue AND r.claim_group = :claim_group {tenant}"
    " AND (r.start_by IS NULL OR r.start_by >= :now OR r.attempt > 0) AND (r.deadline IS NULL OR r.deadline > :now)"
    " AND r.tenant NOT IN (SELECT value FROM json_each(:full)) AND (:priority IS NULL OR r.priority = :priority)"
    " AND r.id NOT IN (SELECT value FROM json_each(:seen)) ORDER BY r.rank, r.id LIMIT :most"
)
_WEIGHT = "coalesce((SELECT b.policy ->> '$.weight' FROM body b WHERE b.id = r.body), 1)"
#: Steps from one tenant to the next without reading the rows between, then keeps those with runs in the queue.
_TENANTS = (
    "WITH RECURSIVE there (tenant) AS ("
    " SELECT min(tenant) FROM run INDEXED BY run_queued WHERE state = 'queued' AND tenant <> 'default'"
    " UNION ALL SELECT (SELECT min(r.tenant) FROM run r INDEXED BY run_queued"
    "   WHERE r.state = 'queued' AND r.tenant <> 'default' AND r.tenant > there.tenant)"
    " FROM there WHERE there.tenant IS NOT NULL)"
    " SELECT tenant FROM there WHERE tenant IS NOT NULL AND EXISTS (SELECT 1 FROM run r INDEXED BY run_queued"
    "   WHERE r.state = 'queued' AND r.tenant <> 'default' AND r.tenant = there.tenant AND r.queue = :queue)"
    " UNION ALL SELECT 'default' WHERE EXISTS (SELECT 1 FROM run r INDEXED BY run_turn"
    "   WHERE r.state = 'queued' AND r.tenant = 'default' AND r.queue = :queue)"
)
_BUSY = (
    "SELECT count(*) FROM session CROSS JOIN run r INDEXED BY run_held"
    " ON r.session = session.id AND r.state = 'running'"
)


class SqliteQueues(SqliteBase):
    #: Queues with a policy that claims must apply, and when they were read.
    _policy_queues: frozenset[str] = frozenset()
    _policy_queues_read_at: float = -_REFRESH_SECONDS
    #: Queues that the store has marked as having runs of several slots.
    _weighted: frozenset[str] = frozenset()
    #: Queues that the store has marked as having a worker with a pool for each priority.
    _pooled: frozenset[str] = frozenset()

    async def put_queue_policy(self, queue: str, policy: QueuePolicy, author: Author) -> None:
        policy.check()
        budget = policy.retries

        def put(connection: apsw.Connection, now: Instant) -> None:
            before = _read_policy(connection, queue)
            if policy.fair:
                connection.execute(_INDEX)
            connection.execute(
                "INSERT INTO queue_policy (queue, policy, closely, retries, per)"
                " VALUES (:queue, :policy, :closely, :retries, :per)"
                " ON CONFLICT DO UPDATE SET policy = excluded.policy, closely = excluded.closely OR weighted OR pooled,"
                " retries = excluded.retries, per = excluded.per",
                {
                    "queue": queue,
                    "policy": encode(policy),
                    "closely": int(policy.looks_closely),
                    "retries": None if budget is None else budget.most,
                    "per": None if budget is None else budget.per,
                },
            )
            differs = what_differs(before.words(), policy.words())
            if differs is not None:
                write_audit(connection, now, "queues.set", author, [Change("", queue, *differs)])

        await self._write(put)
        self._policy_queues_read_at = -_REFRESH_SECONDS

    async def queue_policies(self) -> dict[str, QueuePolicy]:
        stored = msgspec.json.decode(await self._reader.read("queue_policies"), type=dict[str, str])
        policies = {queue: _decode_policy(text) for queue, text in stored.items()}
        return {queue: policy for queue, policy in sorted(policies.items()) if policy != NO_POLICY}

    async def _mark_weighted(self, queues: Iterable[str]) -> None:
        """Mark queues for runs of several slots, before the first of these runs is stored."""
        new = set(queues) - self._weighted
        if new:
            await self._mark("weighted", new)
            self._weighted |= new

    async def _mark(self, column: str, queues: Iterable[str]) -> None:
        def mark(connection: apsw.Connection, now: Instant) -> None:
            connection.executemany(
                f"INSERT INTO queue_policy (queue, policy, closely, {column}) VALUES (:queue, '{{}}', 1, 1)"  # noqa: S608
                f" ON CONFLICT DO UPDATE SET closely = 1, {column} = 1",
                [{"queue": queue} for queue in sorted(queues)],
            )

        await self._write(mark)
        self._policy_queues_read_at = -_REFRESH_SECONDS

    async def _filter_policy_demands(self, demands: Sequence[Demand]) -> list[Demand]:
        """Return the demands on queues with a policy that claims must apply.

        A new policy is noticed within a second; until then nothing is claimed from its queue.
        """
        pooled = {demand.queue for demand in demands if demand.priority is not None}
        if not pooled <= self._pooled:
            await self._mark("pooled", pooled - self._pooled)
            self._pooled |= pooled
        now = asyncio.get_running_loop().time()
        if now - self._policy_queues_read_at >= _REFRESH_SECONDS:
            self._policy_queues = frozenset(
                msgspec.json.decode(await self._reader.read("queues_to_check"), type=list[str])
            )
            self._policy_queues_read_at = now
        return [demand for demand in demands if demand.queue in self._policy_queues] if self._policy_queues else []

    async def _claim_by_policy(
        self, session: SessionId, number: int, demands: Sequence[Demand]
    ) -> tuple[str, set[str]]:
        """Claim from queues with a policy; Python chooses the runs, in one transaction with the claim.

        Return the answer, and the queues with a concurrency limit.
        """
        batch = encode([(demand.queue, demand.limit, demand.tenant) for demand in demands])

        def claim(connection: apsw.Connection, now: Instant) -> tuple[str, set[str]]:
            bounded: set[str] = set()
            found = connection.execute(
                "SELECT coalesce(claim_groups, '[0]') FROM session WHERE id = :id AND live = 1 AND draining = 0"
                " AND lease_until > :now",
                {"id": session, "now": now},
            ).get
            connection.execute("DELETE FROM chosen")
            if found is not None:
                label_sets = msgspec.json.decode(cast("str", found), type=list[int])
                room = _read_room(connection)
                for demand in demands:
                    if _QueueChoice(connection, demand, label_sets, now, room).choose():
                        bounded.add(demand.queue)
            [answer] = call_procedures(connection, [ProcedureCall("claim", batch, session, number)], now)
            connection.execute("DELETE FROM chosen")
            return answer, bounded

        return await self._write(claim)


class _QueueChoice:
    """Chooses the next runs of one queue and writes them to ``chosen``."""

    def __init__(
        self, connection: apsw.Connection, demand: Demand, label_sets: Sequence[int], now: Instant, room: dict[str, int]
    ) -> None:
        self._connection = connection
        self._demand = demand
        self._label_sets = label_sets
        self._now = now
        self._room = room
        found = connection.execute(
            "SELECT policy, weighted, clock FROM queue_policy WHERE queue = :queue", {"queue": demand.queue}
        ).fetchone()
        policy, weighted, self._clock = cast("tuple[str | None, int, int]", found or (None, 0, 0))
        self._policy = _decode_policy(policy)
        self._weight = _WEIGHT if weighted else "1"
        self._paused = fetch_texts(
            connection,
            "SELECT tenant FROM pause WHERE queue IN ('', :queue) AND (until IS NULL OR until > :now)",
            {"queue": demand.queue, "now": now},
        )

    def choose(self) -> bool:
        """Choose the runs; return whether the queue has a concurrency limit."""
        most, bound = self._demand.limit, self._policy.concurrency
        if bound is not None:
            statement = f"{_BUSY} WHERE r.queue = :queue"
            busy = cast("int", self._connection.execute(statement, {"queue": self._demand.queue}).get)
            most = min(most, bound - busy - len(self._read_chosen()))
        if most > 0 and "" not in self._paused:
            self._choose(most)
        return bound is not None

    def _choose(self, most: int) -> None:
        demand, policy = self._demand, self._policy
        limit = demand.limit
        own = [label_set for label_set in self._label_sets if label_set < 0]
        if not policy.fair:
            self._store_chosen(self._choose_runs(limit, most, None, self._label_sets))
            return
        if own:
            # Runs for this worker alone do not take part in fair turns.
            kept = self._store_chosen(self._choose_runs(limit, most, None, own))
            limit -= sum(min(candidate.weight, demand.slots or limit) for candidate in kept)
            most -= len(kept)
        tags = dict(
            cast(
                "Iterable[tuple[str, int]]",
                self._connection.execute(
                    "SELECT tenant, tag FROM queue_turn WHERE queue = :queue", {"queue": demand.queue}
                ),
            )
        )
        tenants = set(fetch_texts(self._connection, _TENANTS, {"queue": demand.queue})) - set(self._paused)
        if demand.tenant is not None:
            tenants &= {demand.tenant}
        turns = TurnOrder(self._clock, tags, policy.shares, tenants)
        self._store_chosen(
            self._choose_runs(limit, most, turns, [label_set for label_set in self._label_sets if label_set >= 0])
        )
        self._connection.execute(
            "UPDATE queue_policy SET clock = :clock WHERE queue = :queue", {"clock": turns.clock, "queue": demand.queue}
        )
        self._connection.execute("DELETE FROM queue_turn WHERE queue = :queue", {"queue": demand.queue})
        self._connection.executemany(
            "INSERT INTO queue_turn (queue, tenant, tag) VALUES (:queue, :tenant, :tag)",
            [{"queue": demand.queue, "tenant": tenant, "tag": tag} for tenant, tag in turns.kept().items()],
        )

    def _choose_runs(
        self, limit: int, most: int, turns: TurnOrder | None, label_sets: Sequence[int]
    ) -> list[Candidate]:
        return made(
            choose(limit, self._demand.slots, most, turns, self._room),
            lambda wanted: {
                group: self._read_best(group, count, label_sets, wanted) for group, count in wanted.most.items()
            },
        )

    def _read_best(self, group: str, count: int, label_sets: Sequence[int], wanted: SlotRequest) -> list[Candidate]:
        tenant = group or self._demand.tenant
        if tenant is None:
            index, condition = "run_ready", ""
        elif tenant != DEFAULT_TENANT:
            index, condition = "run_queued", "AND r.tenant = :tenant AND r.tenant <> 'default'"
        else:
            index, condition = ("run_turn" if group else "run_ready"), "AND r.tenant = 'default'"
        statement = _READY.format(weight=self._weight, index=index, tenant=condition)
        values: dict[str, str | int | None] = {
            "queue": self._demand.queue,
            "now": self._now,
            "full": encode([*wanted.full, *self._paused]),
            "seen": encode([*wanted.seen, *self._read_chosen()]),
            "most": count,
            "priority": self._demand.priority,
        }
        if ":tenant" in condition:
            values["tenant"] = tenant
        found = [
            Candidate(RunId(cast("str", run)), cast("str", owner), cast("int", rank), cast("int", weight))
            for label_set in label_sets
            for run, owner, rank, weight in self._connection.execute(statement, values | {"claim_group": label_set})
        ]
        return sorted(found, key=lambda candidate: (candidate.rank, candidate.id))[:count]

    def _read_chosen(self) -> list[str]:
        statement = "SELECT id FROM chosen WHERE queue = :queue"
        return fetch_texts(self._connection, statement, {"queue": self._demand.queue})

    def _store_chosen(self, chosen: list[Candidate]) -> list[Candidate]:
        self._connection.executemany(
            "INSERT INTO chosen (queue, id) VALUES (:queue, :id)",
            [{"queue": self._demand.queue, "id": item.id} for item in chosen],
        )
        return chosen


def _read_room(connection: apsw.Connection) -> dict[str, int]:
    """Return how many more runs each tenant with a quota may run at once."""
    room: dict[str, int] = {}
    for tenant, most in connection.execute("SELECT name, running FROM tenant WHERE running IS NOT NULL"):
        busy = cast("int", connection.execute(f"{_BUSY} WHERE r.tenant = :tenant", {"tenant": tenant}).get)
        room[cast("str", tenant)] = cast("int", most) - busy
    return room


def _read_policy(connection: apsw.Connection, queue: str) -> QueuePolicy:
    return _decode_policy(
        cast(
            "str | None",
            connection.execute("SELECT policy FROM queue_policy WHERE queue = :queue", {"queue": queue}).get,
        )
    )


def _decode_policy(text: str | None) -> QueuePolicy:
    """Decode a policy. One that this program cannot read, such as a newer one's, counts as none and blocks nothing."""
    try:
        return NO_POLICY if text is None else msgspec.json.decode(text, type=QueuePolicy)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return NO_POLICY
