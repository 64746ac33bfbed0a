"""Operators: they change queue policies, pauses and calendars while runs are active."""

import asyncio

import msgspec

from mainspring.core.model.base.instant import SECOND, Instant
from mainspring.core.model.limits.queues import QueuePolicy, RetryBudget
from mainspring.core.model.schedules.calendar import Covers
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Pause
from tests.support.simulation.clients import Client
from tests.support.simulation.scenario import Scenario
from tests.support.simulation.workload import CALENDARS, TENANTS

SOMEBODY = Author("operator", why="a try")


class Operator(Client):
    async def _live(self, scenario: Scenario, until: Instant) -> None:
        length = scenario.troubled + scenario.settling + scenario.calm
        async with asyncio.TaskGroup() as group:
            for _ in range(scenario.operating):
                # Most changes come early, so that they apply for longer.
                group.create_task(self._operate_at(self._chance.random() ** 2 * length))
        self.done = True

    async def _operate_at(self, after: float) -> None:
        await asyncio.sleep(after / SECOND)
        what = self._chance.random()
        if what < 0.4:
            name = self._chance.choice([CALENDARS[0], *CALENDARS])
            spec = self._workload.freezes(self.machine.loop.true_now())
            if name == CALENDARS[1]:
                spec = msgspec.structs.replace(spec, covers=Covers(everything=True))
            await self._insist(lambda: self._store.put_calendar("default", name, spec, SOMEBODY))
        elif what < 0.8:
            queue, policy = self._chance.choice(["default", "default", "other"]), self._policy()
            await self._insist(lambda: self._store.put_queue_policy(queue, policy, SOMEBODY))
        else:
            pause = self._pause()
            await self._insist(lambda: self._store.pause(pause, SOMEBODY))

    def _policy(self) -> QueuePolicy:
        chance = self._chance
        fair = chance.random() < 0.6
        return QueuePolicy(
            concurrency=chance.randint(2, 6) if chance.random() < 0.5 else None,
            retries=RetryBudget(most=chance.randint(1, 4), per=chance.choice([1, 2]) * SECOND)
            if chance.random() < 0.6
            else None,
            fair=fair,
            shares={chance.choice(TENANTS): chance.randint(2, 3)} if fair and chance.random() < 0.5 else {},
        )

    def _pause(self) -> Pause:
        """A pause with an end time in the near future."""
        chance = self._chance
        return Pause(
            tenant=chance.choice([None, *TENANTS]),
            queue=chance.choice([None, "default", "other"]),
            until=self.machine.loop.true_now() + round(chance.uniform(0.2, 5) * SECOND),
        )
