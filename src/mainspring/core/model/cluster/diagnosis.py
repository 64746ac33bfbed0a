"""Health checks of an installation: findings from its measurements, with advice."""

from enum import StrEnum

import msgspec

from mainspring.core.model.base.instant import MINUTE, SECOND, Instant, Micros, format_duration
from mainspring.core.model.cluster.clock_guard import ClockReading, ClockRules, ClockState, judge
from mainspring.core.model.cluster.datacenters import find_preference
from mainspring.core.model.schedules.cron import find_zone_database

#: A shorter delay is normal under load.
_BEHIND: Micros = 5 * SECOND
_FAR_BEHIND: Micros = MINUTE
#: The reaper cleans up a session shortly after its lease has expired.
_REAPED_WITHIN: Micros = 30 * SECOND
_NAMED = 5


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    check: str
    level: Level
    says: str
    #: What to do; empty if all is well.
    advice: str = ""
    #: The object that the finding names, if it can name another one next time.
    who: str = ""


class WorkerSigns(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    queues: tuple[str, ...]
    #: The tasks that the worker knows; empty: not reported, so it is assumed to know all.
    tasks: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    datacenter: str = ""
    draining: bool = False


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """The number of queued runs of one task that require the same labels."""

    queue: str
    task: str
    runs: int
    requires: tuple[str, ...] = ()


class ReaderSigns(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    #: The time of the oldest event that the reader has not acknowledged.
    oldest: Instant


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of the installation at one moment, independent of the store."""

    now: Instant
    schedulers: int
    workers: tuple[WorkerSigns, ...]
    #: Incomplete if there are very many.
    queued: tuple[Queued, ...]
    #: Sessions whose lease expired this long ago and that the reaper has not cleaned up.
    expired: tuple[str, ...]
    #: The number of scheduled runs that are due, and the due time of the oldest.
    unstaged: int
    oldest_unstaged: Instant | None
    #: The number of schedules that are due, and the due time of the oldest.
    unfired: int
    oldest_unfired: Instant | None
    #: There are schedules that fire, or runs that wait for their due time.
    waiting: bool
    readers: tuple[ReaderSigns, ...]
    dead_letters: int
    #: The pauses as pairs of tenant and queue; empty stands for all.
    pauses: tuple[tuple[str, str], ...]
    #: Paused recurring jobs as pairs of tenant and name.
    paused_jobs: tuple[tuple[str, str], ...] = ()
    #: Live processes that have measured their clock, with the reading.
    clocks: tuple[tuple[str, ClockReading], ...] = ()
    #: Live schedulers that have reported the version of their time zone database, with that version.
    tzdata: tuple[tuple[str, str], ...] = ()
    #: The id of the store.
    identity: str = ""

    def queues(self) -> list[str]:
        """Return the queues that workers serve or that have queued runs."""
        served = {queue for worker in self.workers for queue in worker.queues}
        return sorted(served | {one.queue for one in self.queued})


def diagnose(signs: Signs) -> list[Finding]:
    return [
        _schedulers(signs),
        _workers(signs),
        *_unserved(signs),
        _check_expired(signs),
        _clocks(signs),
        _time_zones(signs),
        _lag("staging", "scheduled runs are due and not queued", signs.unstaged, signs.oldest_unstaged, signs.now),
        _lag("firing", "schedules are due and have not fired", signs.unfired, signs.oldest_unfired, signs.now),
        _readers(signs),
        _dead_letters(signs),
        _pauses(signs),
    ]


def found(check: str, says: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(check=check, level=Level.OK, says=says)


def warned(check: str, says: str, advice: str) -> Finding:
    return Finding(check=check, level=Level.WARNING, says=says, advice=advice)


def blamed(check: str, says: str, advice: str) -> Finding:
    return Finding(check=check, level=Level.PROBLEM, says=says, advice=advice)


def above(check: str, value: float, warning: float, problem: float, says: str, advice: str) -> Finding:
    """Return a finding with the level that ``value`` reaches."""
    level = Level.PROBLEM if value >= problem else Level.WARNING if value >= warning else Level.OK
    return Finding(check=check, level=level, says=says, advice="" if level is Level.OK else advice)


def _schedulers(signs: Signs) -> Finding:
    if signs.schedulers:
        return found("schedulers", f"{signs.schedulers} live")
    says = "no live scheduler: no schedule fires"
    advice = "start mainspring scheduler, or mainspring up"
    return blamed("schedulers", says, advice) if signs.waiting else warned("schedulers", says, advice)


def _workers(signs: Signs) -> Finding:
    if signs.workers:
        queues = sorted({queue for worker in signs.workers for queue in worker.queues})
        counts = ", ".join(f"{queue} {sum(queue in worker.queues for worker in signs.workers)}" for queue in queues[:9])
        return found("workers", f"{len(signs.workers)} live; by queue: {counts}")
    says, advice = "no live worker: nothing runs", "start mainspring worker MODULE:APP, or mainspring up"
    return blamed("workers", says, advice) if signs.queued else warned("workers", says, advice)


def _unserved(signs: Signs) -> list[Finding]:
    """Find runs that no worker will take: no worker serves their queue, or none there has their task or labels."""
    able = [worker for worker in signs.workers if not worker.draining]
    served = {queue for worker in able for queue in worker.queues}
    # A queue that is paused for every tenant needs no worker until it is resumed.
    paused = {queue for tenant, queue in signs.pauses if not tenant}
    queued = [] if "" in paused else [item for item in signs.queued if item.queue not in paused]
    lonely = sorted({item.queue for item in queued} - served)
    unknown = [item for item in queued if item.queue in served and not any(_knows(worker, item) for worker in able)]
    stranded = [
        item
        for item in queued
        if item.requires
        and any(_knows(worker, item) for worker in able)
        and not any(_knows(worker, item) and _has_labels(worker, item.requires) for worker in able)
    ]
    findings = [found("queues", f"every queue with runs{' that is not paused' if paused else ''} has a worker")]
    if lonely:
        runs = sum(item.runs for item in queued if item.queue in lonely)
        says = f"{runs:,} runs wait in queues that no worker serves: {_named(lonely)}"
        findings = [blamed("queues", says, f"start a worker with --queue {lonely[0]}")]
    if stranded:
        labels = sorted({" with ".join(item.requires) for item in stranded})
        runs = sum(item.runs for item in stranded)
        says = f"{runs:,} runs wait for labels that no live worker of their queue and task has: {_named(labels)}"
        advice = "start a worker with them: --label, or --datacenter for a data center"
        findings.append(blamed("labels", says, advice))
    if unknown:
        tasks = sorted({item.task for item in unknown})
        says = f"{sum(item.runs for item in unknown):,} runs wait for tasks that no live worker knows: {_named(tasks)}"
        advice = "deploy workers that know them; a task that was renamed keeps its old name in aliases=[…]"
        return [*findings, blamed("tasks", says, advice)]
    if lonely:
        return [*findings, found("tasks", "every queued task is known to a worker of its queue, where there is one")]
    return [*findings, found("tasks", "every queued task is known to a worker")]


def _knows(worker: WorkerSigns, item: Queued) -> bool:
    return item.queue in worker.queues and (not worker.tasks or item.task in worker.tasks)


def _has_labels(worker: WorkerSigns, requires: tuple[str, ...]) -> bool:
    preference = find_preference(requires)
    order, words = ((), ()) if preference is None else (preference.order, (preference.word,))
    return (not order or worker.datacenter in order) and set(requires) - set(words) <= set(worker.labels)


def _check_expired(signs: Signs) -> Finding:
    if not signs.expired:
        return found("dead workers", "none holds runs or shards")
    says = f"{len(signs.expired)} expired, and still hold runs or shards: {_named(signs.expired)}"
    return blamed("dead workers", says, "a scheduler requeues their runs: start one, or check its log")


def _clocks(signs: Signs) -> Finding:
    """Check with the default rules: each process has its own thresholds in its settings."""
    off = [(name, reading) for name, reading in signs.clocks if judge(reading, ClockRules()) is not ClockState.RIGHT]
    if not off:
        return found("clocks", f"{len(signs.clocks)} measured, all are right")
    worst = max(abs(reading.offset) for _, reading in off)
    says = f"{len(off)} of {len(signs.clocks)} are off: {_named([f'{name} by {reading}' for name, reading in off])}"
    advice = "synchronize the clock there; if all are off by the same, the store's own clock is wrong"
    return above("clocks", worst, 0, ClockRules().fence, says, advice)


def _time_zones(signs: Signs) -> Finding:
    here = f"this process uses {find_zone_database()}"
    versions = sorted({version for _, version in signs.tzdata})
    if len(versions) < 2:
        return found("time zones", f"{here}, the schedulers use {versions[0]}" if versions else here)
    groups = [f"{version}: {_named([name for name, own in signs.tzdata if own == version])}" for version in versions]
    says = f"schedulers use different databases, {'; '.join(groups)}; {here}"
    return warned("time zones", says, "install the same tzdata package everywhere, and restart the schedulers")


def _lag(check: str, what: str, count: int, oldest: Instant | None, now: Instant) -> Finding:
    if oldest is None or now - oldest < _BEHIND:
        return found(check, "nothing is behind")
    late = (now - oldest) // SECOND * SECOND
    advice = "start a scheduler; if one is live, check its log and the store's latency"
    return above(check, late, _BEHIND, _FAR_BEHIND, f"{count:,} {what}, the oldest for {format_duration(late)}", advice)


def _readers(signs: Signs) -> Finding:
    behind = [reader for reader in signs.readers if signs.now - reader.oldest >= _FAR_BEHIND]
    if not behind:
        return found("event readers", f"{len(signs.readers)} attached, none is behind")
    slowest = min(behind, key=lambda reader: reader.oldest)
    late = format_duration((signs.now - slowest.oldest) // SECOND * SECOND)
    says = f"{slowest.name} is {late} behind: events pile up for it"
    return above(
        "event readers",
        signs.now - slowest.oldest,
        _FAR_BEHIND,
        10 * MINUTE,
        says,
        "check whether it is alive; detach it if not",
    )


def _dead_letters(signs: Signs) -> Finding:
    if not signs.dead_letters:
        return found("dead letters", "none")
    advice = "mainspring dead-letters list; then replay or discard them"
    return warned("dead letters", f"{signs.dead_letters:,} runs have failed for good", advice)


def _pauses(signs: Signs) -> Finding:
    queues = [
        f"{f'queue {queue}' if queue else 'every queue'} of {tenant or 'every tenant'}"
        for tenant, queue in signs.pauses
    ]
    jobs = [f"{name} of {tenant}" for tenant, name in signs.paused_jobs]
    says = [f"runs of {_named(queues)} do not start"] if queues else []
    advice = ["mainspring queues resume"] if queues else []
    if jobs:
        says.append(f"{_named(jobs)} {'does' if len(jobs) == 1 else 'do'} not fire")
        advice.append("mainspring jobs resume")
    if not says:
        return found("pauses", "nothing is paused")
    return warned("pauses", "; ".join(says), f"{' and '.join(advice)}, when the reason is gone")


def _named(names: "list[str] | tuple[str, ...]") -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def get_reaping_limit(now: Instant) -> Instant:
    """Return the time before which an expired lease should have been cleaned up."""
    return now - _REAPED_WITHIN
