"""The workload of clients: runs and jobs of every kind, drawn from a seed."""

from collections.abc import Sequence
from random import Random
from typing import Literal, TypeAlias

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Instant, Micros
from mainspring.core.model.cluster.datacenters import ALL, Preference, placed
from mainspring.core.model.limits.limits import Breaker, Limit
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.schedules.calendar import CalendarSpec, Freeze, WhenClosed
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import JobSpec, Overlap
from mainspring.core.model.schedules.schedule import CronSchedule, Interval
from mainspring.core.model.schedules.slo import Slo
from mainspring.core.model.workflows.dependencies import Dependencies, DependencyRule
from tests.support.simulation.acts import Act

Otherwise: TypeAlias = Literal["reject", "existing", "replace", "debounce"]

LOOP = "on the loop"
CHILD = "in a child"

LIMITS = (
    Limit(key="one", most=1),
    Limit(key="three", most=3),
    Limit(key="rate", most=2, per=2 * SECOND),
    Limit(key="seldom", most=3, per=5 * SECOND),
)
BREAKER = Breaker(failures=3, within=5 * SECOND, pause=2 * SECOND)

#: The first is named by jobs, the second covers all of them.
CALENDARS = ("named", "covering")
TENANTS = ("default", "guest", "lodger", "visitor")

_CRONS = ("* * * * * *", "*/2 * * * * *", "*/5 * * * * *", "1,31 * * * * *", "* * * * *")


class Workload:
    def __init__(
        self,
        chance: Random,
        policies: float = 0.0,
        heavy: float = 0.0,
        *,
        calendars: bool = False,
        datacenters: tuple[str, ...] = (),
    ) -> None:
        self._chance = chance
        self._policies = policies
        self._heavy = heavy
        self._calendars = calendars
        #: The data centers of the workers.
        self._datacenters = datacenters

    def act(self) -> Act:
        chance = self._chance
        kind = chance.choices(["work", "fail", "flaky", "hang", "stubborn"], [10, 2, 4, 1, 1])[0]
        takes = round(SECOND * chance.choices([0.0, 0.02, 0.3, 2.0, 14.0], [2, 4, 4, 5, 2])[0] * chance.random())
        if kind == "stubborn":
            takes = round(chance.uniform(0.5, 5) * SECOND)
        return Act(kind, takes, chance.randint(1, 3) if kind == "flaky" else 0)  # type: ignore[arg-type]

    def policy(self, *, keyed: bool) -> RunPolicy:
        chance = self._chance
        backoff: Literal["exponential", "fixed", "list"] = chance.choice(["exponential", "fixed", "list"])
        return RunPolicy(
            retry=RetryPolicy(
                max_retries=chance.randint(0, 3),
                backoff=backoff,
                first_delay=chance.choice([0, 100, 700]) * MILLISECOND,
                max_delay=SECOND,
                delays=(50 * MILLISECOND, SECOND) if backoff == "list" else (),
            ),
            timeout=round(chance.uniform(0.5, 5) * SECOND),
            guarantee="at-most-once" if chance.random() < 0.15 else "at-least-once",
            ordering_key=chance.choice(["a", "b", "c"]) if keyed else "",
        )

    def run(self, run: RunId, policy: RunPolicy, now: Instant) -> NewRun:
        """Draw a run. ``now`` is the time by the client's clock, used for due times."""
        chance = self._chance
        when = chance.random()
        delay: Micros = 0
        at: Instant | None = None
        if when < 0.35:
            delay = round(chance.random() * 6 * SECOND)
        elif when < 0.5:
            at = now + round((chance.random() * 8 - 1) * SECOND)
        act = self.act()
        if act.kind == "work" and act.takes > 5 * SECOND:
            # Longer than a lease, with a timeout that allows it.
            policy = msgspec.structs.replace(policy, timeout=act.takes + 2 * SECOND)
        limit = chance.random()
        return NewRun(
            id=run,
            task=CHILD if chance.random() < 0.3 else LOOP,
            payload=act.payload(),
            queue="other" if chance.random() < 0.25 else "default",
            tenant="guest" if chance.random() < 0.2 else "default",
            priority=chance.randint(1, 10),
            policy=policy,
            at=at,
            delay=delay,
            start_within=round(chance.uniform(0.2, 4) * SECOND) if limit < 0.1 else None,
            deadline=round(chance.uniform(0.5, 6) * SECOND) if 0.05 < limit < 0.2 else None,
        )

    def limited(self, run: NewRun) -> NewRun:
        """The same run, perhaps with limits or a breaker."""
        chance = self._chance
        if chance.random() >= self._policies:
            return run
        what = chance.random()
        limits = tuple(chance.sample(LIMITS, chance.choice([1, 1, 1, 2, 3]))) if what < 0.75 else ()
        breaker = BREAKER if what > 0.6 else None
        return msgspec.structs.replace(run, policy=msgspec.structs.replace(run.policy, limits=limits, breaker=breaker))

    def heavy(self, run: NewRun) -> NewRun:
        """The same run, perhaps of another tenant or with a weight."""
        chance = self._chance
        if chance.random() >= self._heavy:
            return run
        policy = msgspec.structs.replace(run.policy, weight=chance.choice([1, 2, 2, 3, 8]))
        return msgspec.structs.replace(run, policy=policy, tenant=chance.choice(TENANTS))

    def placed(self, run: NewRun) -> NewRun:
        """The same run, perhaps with a required or a preferred data center."""
        if not self._datacenters or self._chance.random() < 0.6:
            return run
        # The other queue has no worker in some data centers.
        return msgspec.structs.replace(run, policy=self._bound(run.policy), queue="default")

    def _placed_spec(self, spec: JobSpec) -> JobSpec:
        """The same job, perhaps with data centers. The caller redraws invalid combinations."""
        chance = self._chance
        what = chance.random() if self._datacenters else 1.0
        if what < 0.3:
            return msgspec.structs.replace(spec, datacenters=(ALL,))
        if what < 0.6:
            some = chance.sample(self._datacenters, chance.randint(1, len(self._datacenters)))
            return msgspec.structs.replace(spec, datacenters=tuple(some))
        return msgspec.structs.replace(spec, policy=self._bound(spec.policy)) if what < 0.9 else spec

    def _bound(self, policy: RunPolicy) -> RunPolicy:
        chance = self._chance
        if chance.random() < 0.2:
            return placed(policy, chance.choice(self._datacenters))
        # The last of these never has a worker, and eu may have none.
        order = chance.choice([("us", "eu"), ("eu", "us"), ("mars", "us")])
        word = Preference(order, chance.choice([1, 2, 3]) * SECOND).word
        return msgspec.structs.replace(policy, requires=(word,))

    def related(self, runs: list[NewRun], there: Sequence[tuple[str, RunId]]) -> list[NewRun]:
        """The same runs, some of them with parents among them or among existing runs, by (tenant, id)."""
        chance = self._chance
        related: list[NewRun] = []
        for run in runs:
            mine = [other.id for other in related if other.tenant == run.tenant]
            mine += [other for tenant, other in there[-20:] if tenant == run.tenant]
            if mine and chance.random() < self._policies:
                parents = tuple(dict.fromkeys(chance.choices(mine, k=chance.randint(1, 4))))
                run = msgspec.structs.replace(
                    run, after=Dependencies(parents=parents, rule=chance.choice(list(DependencyRule)))
                )
            related.append(run)
        return related

    def unique(self, run: NewRun) -> NewRun:
        """The same run, perhaps with a unique key."""
        chance = self._chance
        if chance.random() >= self._policies / 2:
            return run
        otherwise: Otherwise = chance.choice(["reject", "existing", "replace", "debounce"])
        return msgspec.structs.replace(run, unique=Unique(key=chance.choice(["u", "v"]), otherwise=otherwise))

    def killer(self, run: RunId) -> NewRun:
        """A run that kills its process."""
        chance = self._chance
        return NewRun(
            id=run,
            task=LOOP if chance.random() < 0.7 else CHILD,
            payload=Act("kill", round(chance.random() * SECOND)).payload(),
            delay=round(chance.random() * 3 * SECOND),
        )

    def immortal(self, run: RunId) -> NewRun:
        """A run that ignores every stop, long after its timeout."""
        return NewRun(
            id=run,
            task=LOOP,
            payload=Act("stubborn", 50 * SECOND).payload(),
            policy=RunPolicy(timeout=SECOND, retry=RetryPolicy(max_retries=self._chance.randint(0, 1), first_delay=0)),
        )

    def spec(self, name: str, start: Instant, end: Instant) -> JobSpec:
        """Draw a job that ends at ``end``. One that would never fire is redrawn, because it would be rejected."""
        while True:
            spec = self._placed_spec(self._any_spec(name, start, end))
            try:
                spec.check()
            except Invalid:
                continue
            return spec

    def _any_spec(self, name: str, start: Instant, end: Instant) -> JobSpec:
        chance = self._chance
        schedule: CronSchedule | Interval
        kind = chance.random()
        jitter = round(chance.random() * 900 * MILLISECOND) if chance.random() < 0.2 else 0
        begins = start + chance.randrange(5_000) * MILLISECOND if chance.random() < 0.2 else None
        if kind < 0.5:
            schedule = CronSchedule(expression=chance.choice(_CRONS), end=end, start=begins, jitter=jitter)
        elif kind < 0.75:
            every = chance.choice([1_000, 1_300, 4_000]) * MILLISECOND
            schedule = Interval(every=every, end=end, start=begins, jitter=jitter)
        else:
            every = chance.choice([1_000, 2_500]) * MILLISECOND
            schedule = Interval(every=every, mode="fixed_delay", end=end, start=begins)
        return JobSpec(
            name=name,
            task=CHILD if chance.random() < 0.15 else LOOP,
            schedule=schedule,
            queue="default",
            priority=chance.randint(1, 10),
            policy=self.policy(keyed=chance.random() < 0.15),
            overlap=chance.choice(list(Overlap)),
            catch_up=self._catch_up(),
            start_within=round(chance.uniform(0.3, 3) * SECOND) if chance.random() < 0.15 else None,
            deadline=round(chance.uniform(0.5, 5) * SECOND) if chance.random() < 0.15 else None,
            calendars=CALENDARS[:1] if self._calendars and chance.random() < 0.5 else (),
            when_closed=chance.choice(list(WhenClosed)),
            slo=self._slo(),
        )

    def _slo(self) -> Slo | None:
        chance = self._chance
        what = chance.random()
        if what < 0.3:
            return Slo(start_within=chance.choice([1, 2]) * SECOND)
        return Slo(succeed_every=chance.choice([2, 4]) * SECOND) if what < 0.5 else None

    def freezes(self, now: Instant) -> CalendarSpec:
        """Draw a new version of a calendar, with past and future closed periods."""
        chance = self._chance
        starts = [now + round(chance.uniform(-3, 10) * SECOND) for _ in range(chance.randint(0, 2))]
        return CalendarSpec(
            freezes=tuple(Freeze(start=start, end=start + chance.randint(1, 4) * SECOND) for start in starts)
        )

    def job_payload(self) -> bytes:
        """Draw the act of each run of a job. Most end before the next tick."""
        chance = self._chance
        takes = round(chance.choices([0.05, 0.8, 3], [4, 2, 1])[0] * SECOND * chance.random())
        return Act("work" if chance.random() < 0.8 else "flaky", takes, 1).payload()

    def _catch_up(self) -> CatchUp:
        chance = self._chance
        return CatchUp(
            mode=chance.choice(["none", "latest", "all"]),
            grace=chance.choice([500 * MILLISECOND, 2 * SECOND, MINUTE]),
            cap=chance.choice([1, 3, 100]),
            max_age=chance.choice([4 * SECOND, MINUTE]),
            pace=chance.choice([0, 300 * MILLISECOND]),
        )
