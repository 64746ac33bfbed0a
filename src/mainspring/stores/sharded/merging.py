"""Merges the answers of several servers. Pure functions."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import msgspec

from mainspring.core.model.runs.usage import Usage
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job
from mainspring.core.ports.storage.catalog import DeadGroup, Load, Minute, Page, SessionView, Standings, Timings
from mainspring.core.ports.storage.reads import QueueBacklog
from mainspring.stores.depths import earliest, merge_pinned

T = TypeVar("T")
Listed = TypeVar("Listed", RunView, Job)


def merge_pages(pages: Iterable[Page[Listed]], limit: int) -> Page[Listed]:
    """Merge pages, newest first by id.

    A page with a cursor covers ids down to that cursor only. So items of other servers below it belong to a later page.
    """
    pages = list(pages)
    ends = [page.after for page in pages if page.after is not None]
    bound = max(ends, default="")
    items = sorted(
        (item for page in pages for item in page.items if item.id >= bound), key=lambda item: item.id, reverse=True
    )
    if len(items) > limit:
        return Page(items[:limit], items[limit - 1].id)
    whole = not ends and sum(len(page.items) for page in pages) == len(items)
    return Page(items, None if whole else bound)


def merge_standings(found: Iterable[Standings], limit: int) -> Standings:
    """Merge the newest runs of all servers. A run that is being moved counts once."""
    found = list(found)
    states = {run: state for one in found for state, runs in one.runs.items() for run in runs}
    merged = Standings({}, {})
    for run in sorted(states, reverse=True)[:limit]:
        merged.runs.setdefault(states[run], []).append(run)
    merged.replays.update((old, new) for one in found for old, new in one.replays.items())
    return merged


def merge_by(items: Iterable[T], key: Callable[[T], Hashable], both: Callable[[T, T], T]) -> list[T]:
    """Merge the items of each key into one."""
    found: dict[Hashable, T] = {}
    for item in items:
        name = key(item)
        found[name] = both(found[name], item) if name in found else item
    return list(found.values())


def both_sessions(one: SessionView, other: SessionView) -> SessionView:
    """Combine the views of one session on two servers."""
    return msgspec.structs.replace(
        one,
        lease_until=max(one.lease_until, other.lease_until),
        running=one.running + other.running,
        draining=one.draining or other.draining,
        shards=max(one.shards, other.shards),
    )


def merge_depths(depths: Iterable[QueueBacklog]) -> list[QueueBacklog]:
    def both(one: QueueBacklog, other: QueueBacklog) -> QueueBacklog:
        return QueueBacklog(
            queue=one.queue,
            queued=one.queued + other.queued,
            running=one.running + other.running,
            pinned=merge_pinned([*one.pinned, *other.pinned]),
            oldest_due=earliest(one.oldest_due, other.oldest_due),
            oldest_ready=earliest(one.oldest_ready, other.oldest_ready),
        )

    return sorted(merge_by(depths, lambda depth: depth.queue, both), key=lambda depth: depth.queue)


_WORST = ("late_most", "took_most")


def merge_minutes(minutes: Iterable[Minute]) -> list[Minute]:
    def both(one: Minute, other: Minute) -> Minute:
        sums = {
            name: (max if name in _WORST else sum)((getattr(one, name), getattr(other, name)))
            for name in Minute.__struct_fields__
            if name not in ("at", "queue")
        }
        return Minute(at=one.at, queue=one.queue, **sums)

    merged = merge_by(minutes, lambda minute: (minute.at, minute.queue), both)
    return sorted(merged, key=lambda minute: (minute.at, minute.queue))


def merge_loads(loads: Iterable[Load]) -> list[Load]:
    def both(one: Load, other: Load) -> Load:
        return Load(
            at=one.at,
            queued=one.queued + other.queued,
            running=one.running + other.running,
            lag=max(one.lag, other.lag),
        )

    return sorted(merge_by(loads, lambda load: load.at, both), key=lambda load: load.at)


def merge_timings(timings: Iterable[Timings]) -> Timings:
    late: Counter[int] = Counter()
    took: Counter[int] = Counter()
    for one in timings:
        late.update(one.late)
        took.update(one.took)
    return Timings(dict(late), dict(took))


def merge_groups(groups: Iterable[DeadGroup], limit: int) -> list[DeadGroup]:
    def both(one: DeadGroup, other: DeadGroup) -> DeadGroup:
        newest = max(one, other, key=lambda group: group.last_at)
        return msgspec.structs.replace(
            newest,
            count=one.count + other.count,
            first_at=min(one.first_at, other.first_at),
            trend=tuple(map(sum, zip(one.trend, other.trend, strict=True))),
        )

    merged = merge_by(groups, lambda group: (group.fingerprint, group.task), both)
    return sorted(merged, key=lambda group: (-group.count, -group.last_at))[:limit]


def merge_usage(usage: Iterable[Usage], limit: int) -> list[Usage]:
    def both(one: Usage, other: Usage) -> Usage:
        return msgspec.structs.replace(one, amount=one.amount + other.amount)

    merged = merge_by(usage, lambda item: (item.day, item.tenant, item.key, item.unit), both)
    return sorted(merged, key=lambda item: item.day)[:limit]


def merge_counts(counts: Iterable[Sequence[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Add up pairs of (key, count), and sort them by key."""
    both = merge_by((pair for part in counts for pair in part), lambda pair: pair[0], lambda a, b: (a[0], a[1] + b[1]))
    return sorted(both)
