"""The service that checks budgets every few seconds: it warns, lowers priorities, or pauses until the period ends."""

from random import Random
from typing import Protocol

import msgspec

from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.model.limits.budget import BudgetStatus, amount_words, author_name, find_period, judge, news
from mainspring.core.model.schedules.job import JobState
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import Catalog, Pause
from mainspring.core.ports.storage.operations import Operations
from mainspring.core.ports.storage.reads import JobNames, StoreReads
from mainspring.core.ports.storage.usage import BudgetStore
from mainspring.core.ports.wakeups import Wakeups, queue_topic
from mainspring.core.runtime.service import TickingService
from mainspring.core.store import Submissions

_INTERVAL: Micros = 5 * SECOND
#: At most this many runs of a budget are lowered in one tick. The next tick lowers more.
_LIMIT = 5_000


class BudgetKeeperStore(BudgetStore, Catalog, Operations, Submissions, JobNames, StoreReads, Protocol):
    """The part of the store that the budget keeper uses."""


class BudgetKeeper(TickingService):
    """Checks every budget at each tick.

    It works from state and not from events, so any number of keepers may run. Only one of them reports a change, and
    pausing what is already paused has no effect.
    """

    def __init__(self, store: BudgetKeeperStore, wakeups: Wakeups, clock: Clock, random: Random) -> None:
        super().__init__("budgets", clock, wakeups.listen(()))
        self._store = store
        self._wakeups = wakeups
        self._random = random

    async def tick(self) -> Micros:
        for status in await self._store.budgets(None):
            await self._check_budget(status)
        return round(_INTERVAL * (0.75 + self._random.random() / 2))

    async def _check_budget(self, status: BudgetStatus) -> None:
        store, budget = self._store, status.budget
        now = await store.now()
        since, _ = find_period(budget, now)
        checked = judge(status, await store.spent(status, since), now)
        is_held = checked.state == "over" and budget.then == "pause"
        checked = msgspec.structs.replace(checked, held=is_held)
        if status.held and not is_held:
            # Release first, then mark: after a crash in between, the next tick releases again.
            await release_work(store, self._wakeups, status)
        if checked != status:
            change = news(status, checked)
            if await store.mark_budget(status, checked, change) and change:
                self.log.warning("budget state changed", budget=budget.name, tenant=budget.tenant, state=checked.state)
        if is_held:
            await self._pause_work(checked)
        if checked.state == "over" and budget.then == "lower":
            await store.lower(budget, _LIMIT)

    async def _pause_work(self, status: BudgetStatus) -> None:
        budget = status.budget
        author = _build_author(status)
        if budget.of == "tenant":
            await self._store.pause(Pause(tenant=budget.tenant, queue=None), author)
            return
        job = await self._store.job_named(budget.tenant, budget.target)
        if job is not None:
            await self._store.set_jobs_state([job], JobState.PAUSED, author)


async def release_work(store: BudgetKeeperStore, wakeups: Wakeups, status: BudgetStatus) -> None:
    """Resume what a budget has paused. Pauses by other authors stay."""
    budget = status.budget
    author = _build_author(status)
    if budget.of == "tenant":
        pauses = [p for p in await store.pauses() if p.tenant == budget.tenant and p.queue is None]
        if any(pause.author == author.name for pause in pauses):
            await store.resume(budget.tenant, None, author)
            wakeups.notify([queue_topic(depth.queue) for depth in await store.depths(budget.tenant)])
        return
    job = await store.job_named(budget.tenant, budget.target)
    if job is not None:
        await store.set_jobs_state([job], JobState.SCHEDULED, author)


def _build_author(status: BudgetStatus) -> Author:
    budget = status.budget
    why = f"over budget {budget.name!r}: {amount_words(budget.unit, budget.limit)} a {budget.period}"
    return Author(author_name(budget.name), budget.tenant, why)
