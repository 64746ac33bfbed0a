"""Pauses, quotas and policies that a claim or a retry obeys."""

import sys

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.limits.queues import NO_POLICY, QueuePolicy, place_retry
from mainspring.stores.memory.data import StoreData
from mainspring.stores.memory.rows import RunRow


class QueueRules(StoreData):
    """Answers what the pauses, quotas and queue policies allow now."""

    def is_paused(self, run: RunRow, now: Instant) -> bool:
        return bool(self.pauses) and any(
            (pause := self.pauses.get((tenant, queue))) is not None and not pause.is_over(now)
            for tenant in (run.tenant, None)
            for queue in (run.queue, None)
        )

    def find_resume_time(self, run: RunRow, now: Instant) -> Instant:
        """Return when the last pause that applied to the run ended; 0 if none ended recently."""
        pauses = (self.pauses.get((tenant, queue)) for tenant in (run.tenant, None) for queue in (run.queue, None))
        return max(
            (pause.until for pause in pauses if pause is not None and pause.until is not None and pause.is_over(now)),
            default=0,
        )

    def compute_room(self, tenant: str) -> int:
        """Return how many more runs of a tenant may run at once."""
        known = self.tenants.get(tenant)
        quota = None if known is None else known.quotas.running
        return sys.maxsize if quota is None else quota - self.running_by_tenant[tenant]

    def get_queue_policy(self, queue: str) -> QueuePolicy:
        return self.queue_policies.get(queue, NO_POLICY)

    def count_running(self, queue: str) -> int:
        return sum(self.runs[run].queue == queue for held in self.running_by_session.values() for run in held)

    def compute_retry_due(self, run: RunRow, due: Instant) -> Instant:
        """Return when the run may be retried: the retry budget of its queue may move it past ``due``."""
        budget = self.get_queue_policy(run.queue).retries
        if budget is None or run.attempt == 0:
            return due
        counts = self.queue_retries[run.queue]
        for period in [period for period in counts if period < self.now // budget.per - 1]:
            del counts[period]
        return place_retry(budget, counts, due)
