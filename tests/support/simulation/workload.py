"""What clients ask for: runs and jobs of every kind, drawn from a seed."""

from random import Random
from typing import Literal

import msgspec

from mainspring.domain.catch_up import CatchUp
from mainspring.domain.errors import Invalid
from mainspring.domain.ids import RunId
from mainspring.domain.instant import MILLISECOND, MINUTE, SECOND, Instant, Micros
from mainspring.domain.job import JobSpec, Overlap
from mainspring.domain.retry import RetryPolicy
from mainspring.domain.run import NewRun, RunPolicy
from mainspring.domain.schedule import CronSchedule, Interval
from tests.support.simulation.acts import Act

LOOP = "on the loop"
CHILD = "in a child"

_CRONS = ("* * * * * *", "*/2 * * * * *", "*/5 * * * * *", "1,31 * * * * *", "* * * * *")


class Workload:
    def __init__(self, chance: Random) -> None:
        self._chance = chance

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
        """A run; ``now`` is the client's own idea of the time, used for due times."""
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
            # Longer than a lease, and it is given the time.
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

    def killer(self, run: RunId) -> NewRun:
        """A run that ends whatever process it runs in."""
        chance = self._chance
        return NewRun(
            id=run,
            task=LOOP if chance.random() < 0.7 else CHILD,
            payload=Act("kill", round(chance.random() * SECOND)).payload(),
            delay=round(chance.random() * 3 * SECOND),
        )

    def immortal(self, run: RunId) -> NewRun:
        """A run that does not stop whatever anybody does, long after its time."""
        return NewRun(
            id=run,
            task=LOOP,
            payload=Act("stubborn", 50 * SECOND).payload(),
            policy=RunPolicy(timeout=SECOND, retry=RetryPolicy(max_retries=self._chance.randint(0, 1), first_delay=0)),
        )

    def spec(self, name: str, start: Instant, end: Instant) -> JobSpec:
        """A job that ends at ``end``. One that would never fire is drawn again, since nobody would accept it."""
        while True:
            spec = self._any_spec(name, start, end)
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
        )

    def job_payload(self) -> bytes:
        """What each run of a job does: most are done before the next tick."""
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
