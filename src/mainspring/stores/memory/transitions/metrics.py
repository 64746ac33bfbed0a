"""Counts by the minute, and usage by the day."""

from collections import Counter

from mainspring.core.model.base.instant import MINUTE
from mainspring.core.model.base.percentiles import find_bucket
from mainspring.core.model.runs.completion import Completion
from mainspring.core.model.runs.run import Outcome, RunState
from mainspring.core.model.runs.usage import compute_cost, find_day
from mainspring.core.ports.storage.catalog import TIMINGS_STEP
from mainspring.stores.memory.data import StoreData
from mainspring.stores.memory.rows import RunRow


class MetricTransitions(StoreData):
    """Counts ended runs and the cost of attempts."""

    def get_minute_counts(self, run: RunRow) -> Counter[str]:
        """Return the metrics of the current minute that the run counts in."""
        return self.minute_counts[self.now // MINUTE * MINUTE, run.queue, run.tenant]

    def count_cost(self, run: RunRow, completion: Completion) -> None:
        """Add the cost of an attempt that ends now to the usage of the day."""
        assert run.started_at is not None
        charged = completion.outcome is not Outcome.RELEASED
        cost = compute_cost(self.now - run.started_at, completion.spent, charged=charged)
        for unit, amount in cost.items():
            self.usage[find_day(self.now), run.tenant, run.task, run.job_id or "", unit] += amount

    def _count_end(self, run: RunRow, state: RunState, *, ran: bool) -> None:
        counts = self.get_minute_counts(run)
        counts[state.value] += 1
        if ran and run.state is RunState.RUNNING:
            assert run.started_at is not None
            counts["started"] += 1
            spans = (("late", run.started_at - run.due), ("took", self.now - run.started_at))
            counted = self.timings[self.now // TIMINGS_STEP * TIMINGS_STEP, run.queue, run.tenant]
            for (name, duration), buckets in zip(spans, counted, strict=True):
                counts[f"{name}_total"] += duration
                counts[f"{name}_most"] = max(counts[f"{name}_most"], duration)
                buckets[find_bucket(duration)] += 1
        else:
            self.unattempted[run.task, state] += 1
