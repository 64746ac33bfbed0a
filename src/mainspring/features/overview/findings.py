"""The findings of the overview: what is wrong with the cluster."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from mainspring.core.model.base.instant import HOUR, SECOND, Instant
from mainspring.http.schemas.datacenters import DatacenterOut
from mainspring.http.schemas.dead_letters import GroupOut
from mainspring.http.schemas.queues import QueueOut
from mainspring.http.schemas.runs import RunOut
from mainspring.http.schemas.stats import MissedSlo, Point
from mainspring.http.schemas.usage import BudgetOut
from mainspring.http.schemas.workers import Schedulers, Workers
from mainspring.web.formatting import describe_stranded, duration, instant, plural

#: The start delay above which a run is late, in milliseconds.
LATE_MS = 10_000
_MAX_CLOCK_OFFSET_MS = 1_000
#: The share of failed runs in the last hour that is reported, and the fewest runs for which it is meaningful.
_HIGH_FAILURE_SHARE = 0.2
_MIN_ENDED_RUNS = 20
#: How many late runs are shown.
_MAX_LATE_RUNS = 6


class Finding(NamedTuple):
    """A problem that the overview reports."""

    words: str
    #: The page to look at, relative to the base.
    path: str = ""
    urgent: bool = False


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The data that the overview has read."""

    workers: Workers
    schedulers: Schedulers
    now: Instant
    queues: Sequence[QueueOut] = ()
    #: Ended runs over time, covering at least the last hour.
    points: Sequence[Point] = ()
    #: The largest groups of dead letters.
    groups: Sequence[GroupOut] = ()
    #: Whether there may be more groups.
    more_groups: bool = False
    budgets: Sequence[BudgetOut] = ()
    missed: Sequence[MissedSlo] = ()
    datacenters: Sequence[DatacenterOut] = ()
    #: Late runs with their delay in seconds, longest delay first.
    late: Sequence[tuple[RunOut, float]] = ()


def list_findings(view: ClusterView) -> list[Finding]:
    """Return the problems of the cluster, worst first. Empty if all is well."""
    found = [
        *_find_missing_processes(view),
        *_find_queue_problems(view),
        *_find_data_center_problems(view),
        *_find_run_problems(view),
        *_find_missed_slos(view),
        *_find_spent_budgets(view),
        *_find_wrong_clocks(view),
    ]
    return sorted(found, key=lambda finding: not finding.urgent)


def find_late_runs(runs: Sequence[RunOut], now: Instant, queues: Sequence[QueueOut] = ()) -> list[tuple[RunOut, float]]:
    """Return runs that started, or still wait, long after their due time, with the delay in seconds, longest first.

    Runs that wait for a data center without workers are omitted: they have a finding of their own.
    """
    stranded = {(queue.name, name) for queue in queues for name in queue.stranded}
    found: dict[str, tuple[RunOut, float]] = {}
    for run in runs:
        began = now if run.status == "queued" else instant(run.start_time) if run.start_time else None
        # Skip retries: only the first attempt shows whether the run was late.
        is_stranded = run.status == "queued" and (run.queue, run.datacenter) in stranded
        if began is None or is_stranded or run.attempt_number > 1:
            continue
        late = (began - instant(run.scheduled_for)) / SECOND
        if late * 1_000 > LATE_MS:
            found[run.run_id] = (run, late)
    return sorted(found.values(), key=lambda one: -one[1])[:_MAX_LATE_RUNS]


def _find_missing_processes(view: ClusterView) -> Iterator[Finding]:
    if not view.schedulers.items:
        yield Finding("no live scheduler: no runs become due", urgent=True)
    elif view.schedulers.lag_ms > LATE_MS:
        yield Finding(f"schedulers are {duration(view.schedulers.lag_ms / 1_000)} behind", urgent=True)
    if not view.workers.items:
        yield Finding("no live worker: no runs start", urgent=True)


def _find_queue_problems(view: ClusterView) -> Iterator[Finding]:
    for queue in view.queues:
        path = f"runs?status=queued&queue={quote(queue.name)}"
        waiting = plural(queue.queued, "run waits", "runs wait")
        if queue.paused:
            yield Finding(f"queue {queue.name} is paused" + (f": {waiting}" if queue.queued else ""), path)
        elif queue.queued and not queue.workers and view.workers.items:
            yield Finding(f"queue {queue.name} has no workers: {waiting}", path, urgent=True)
        elif queue.lag_ms > LATE_MS and view.workers.items:
            yield Finding(f"queue {queue.name} is {duration(queue.lag_ms / 1_000)} late: {waiting}", path)


def _find_data_center_problems(view: ClusterView) -> Iterator[Finding]:
    if not view.workers.items:
        return
    absent = {data_center.name for data_center in view.datacenters if data_center.health == "no-workers"}
    waiting: Counter[str] = Counter()
    for queue in view.queues:
        for name, runs in queue.stranded.items():
            waiting[name] += runs
            if name not in absent and queue.workers:
                path = f"runs?status=queued&queue={quote(queue.name)}"
                yield Finding(describe_stranded(name, runs, queue.name), path, urgent=True)
    for name in sorted(absent):
        if waiting[name]:
            yield Finding(describe_stranded(name, waiting[name]), "datacenters", urgent=True)
        else:
            yield Finding(f"data center {name} has no workers", "datacenters")


def _find_run_problems(view: ClusterView) -> Iterator[Finding]:
    last_hour = [point for point in view.points if instant(point.time) > view.now - HOUR]
    failed = sum(point.failed for point in last_hour)
    ended = failed + sum(point.succeeded for point in last_hour)
    if ended >= _MIN_ENDED_RUNS and failed > ended * _HIGH_FAILURE_SHARE:
        words = f"{failed / ended:.0%} of the runs of the last hour failed: {failed:,} of {ended:,}"
        yield Finding(words, "runs?status=failed", urgent=True)
    if dead := sum(group.trend[-1] for group in view.groups if group.trend):
        least = "at least " if view.more_groups else ""
        yield Finding(f"{least}{plural(dead, 'dead letter')} in the last hour", "dead-letters")
    if view.late:
        run, seconds = view.late[0]
        yield Finding(f"runs are up to {duration(seconds)} late", f"runs/{run.run_id}")


def _find_missed_slos(view: ClusterView) -> Iterator[Finding]:
    for job in view.missed:
        since = job.slo_state.missed_since
        duration_words = f" for {duration((view.now - instant(since)) / SECOND)}" if since is not None else ""
        yield Finding(f"SLO of {job.name} missed{duration_words}", f"jobs/{job.job_id}")


def _find_spent_budgets(view: ClusterView) -> Iterator[Finding]:
    for budget in view.budgets:
        if budget.state == "over":
            paused = f", and its {budget.of} is paused" if budget.held else ""
            path = f"tenants/{quote(budget.tenant, safe='')}"
            yield Finding(
                f"budget {budget.name} of tenant {budget.tenant} is used up{paused}", path, urgent=budget.held
            )


def _find_wrong_clocks(view: ClusterView) -> Iterator[Finding]:
    offsets = [one.clock_offset_ms for one in view.workers.items]
    offsets += [one.clock_offset_ms for one in view.schedulers.items]
    if wrong := sum(abs(offset or 0) > _MAX_CLOCK_OFFSET_MS for offset in offsets):
        yield Finding(f"the clocks of {plural(wrong, 'process', 'processes')} are off by more than a second")
