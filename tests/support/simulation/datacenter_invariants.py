"""Invariants of data centers: each run is where it belongs, and the ledger names its data center."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.cluster.datacenters import ALL, Preference, find_datacenter, find_preference
from mainspring.core.model.schedules.job import LedgerEntry
from tests.support.simulation.evidence import Evidence, QueueRules
from tests.support.simulation.history import Heartbeat, Step

#: A scheduler reads data centers once a second, waits for the answer, and may freeze before it sends the tick.
_STALE: Micros = 10 * SECOND
_NEVER: Instant = -1 << 62


class Served:
    """The serving data center of each preference, and since when, as of the last step."""

    def __init__(self) -> None:
        self._by_word: dict[str, tuple[str, Instant]] = {}

    def observe(self, step: Step) -> None:
        self._by_word |= {word: (datacenter, step.at) for word, datacenter in step.serving.items()}

    def by(self, preference: Preference) -> tuple[str, Instant]:
        """A new preference is served by its first data center."""
        return self._by_word.get(preference.word, (preference.order[0], _NEVER))


def every_run_is_where_it_belongs(evidence: Evidence) -> Iterator[str]:
    rules = QueueRules()
    for step in evidence.history.steps:
        rules.observe(step)
        for change in step.runs:
            run = change.after
            if change.before is None or run.fence == change.before.fence:
                continue
            datacenter, here = rules.find_datacenter(run), evidence.datacenter(step)
            if datacenter is not None and here != datacenter:
                yield f"{run.id} is for {datacenter} by {run.policy.requires}, and {step.process} in {here!r} got it"


def no_live_data_center_is_replaced(evidence: Evidence) -> Iterator[str]:
    alive = _find_heartbeats(evidence)
    for step in evidence.history.steps:
        for word, datacenter in step.serving.items():
            preference = find_preference((word,))
            assert preference is not None
            for better in preference.order[: preference.order.index(datacenter)]:
                heartbeats = alive[better]
                # The store decides by the heartbeats that arrived before, even if later ones have the same time.
                newest = bisect_left(heartbeats, step.order, key=lambda heartbeat: heartbeat.order) - 1
                if newest >= 0 and step.at - heartbeats[newest].at <= preference.patience:
                    seen_at = heartbeats[newest].at
                    yield f"{word}: {datacenter} serves from {step.at} on, and {better} was there at {seen_at}"


def every_tick_is_in_each_of_its_datacenters(evidence: Evidence) -> Iterator[str]:
    known = {datacenter: heartbeats[0].at for datacenter, heartbeats in _find_heartbeats(evidence).items()}
    # A tick before a closed period may come again after a change of the job. Each of its datacenters has it once.
    before: dict[tuple[JobId, Instant], set[str]] = defaultdict(set)
    for step in evidence.history.steps:
        specs = {change.before.id: change.before.spec for change in step.jobs if change.before is not None}
        recorded: dict[tuple[JobId, Instant], list[LedgerEntry]] = defaultdict(list)
        for tick in step.ticks:
            recorded[tick.job_id, tick.scheduled_at].append(tick)
        for (job, at), entries in recorded.items():
            spec, targets = specs.get(job), {entry.target for entry in entries}
            earlier = before[job, at].copy()
            before[job, at] |= targets
            if spec is None:
                continue
            if spec.datacenters != (ALL,):
                if targets != set(spec.datacenters or ("",)) - earlier:
                    yield f"{job}: the tick at {at} went to {sorted(targets)}, and its job to {spec.datacenters}"
            elif step.operation == "fire":
                long_known = {datacenter for datacenter, since in known.items() if since < step.sent - _STALE}
                new = {datacenter for datacenter, since in known.items() if since <= step.at}
                if not long_known <= targets | earlier or not targets - {""} <= new:
                    yield f"{job}: the tick at {at} went to {sorted(targets)}, and {sorted(long_known)} are there"
        made = {change.after.id: change.after for change in step.runs if change.before is None}
        for tick in step.ticks:
            run = made.get(tick.run_id) if tick.target and tick.run_id is not None else None
            if run is not None and find_datacenter(run.policy.requires) != tick.target:
                yield f"{run.id} of {tick.target} requires {run.policy.requires}"


def the_ledger_names_replacements(evidence: Evidence) -> Iterator[str]:
    """Checks first starts, unless the serving data center was just changing or a calendar gave another reason."""
    known = {datacenter: heartbeats[0].at for datacenter, heartbeats in _find_heartbeats(evidence).items()}
    said = {entry.run_id: entry for ledger in evidence.truth.ledgers.values() for entry in ledger}
    made = {tick.run_id: step.at for step in evidence.history.steps for tick in step.ticks if tick.run_id is not None}
    served = Served()
    for step in evidence.history.steps:
        served.observe(step)
        for change in step.runs:
            run, preference = change.after, find_preference(change.after.policy.requires)
            entry = said.get(run.id)
            first = change.before is not None and run.fence and not change.before.fence
            if preference is None or entry is None or not first:
                continue
            here, since = served.by(preference)
            # A scheduler does not know the age of a preference that it has not read yet.
            unseen = known.get(preference.order[0], made[run.id] + 1) > made[run.id]
            if here == preference.order[0] or unseen or entry.reason:
                continue
            if not since <= made[run.id] <= since + _STALE + evidence.truth.clock_steps:
                yield f"{run.id} went to {here} by {preference.word}, and the ledger says nothing"


def _find_heartbeats(evidence: Evidence) -> dict[str, list[Heartbeat]]:
    """The heartbeats of each data center, in order."""
    heartbeats: dict[str, list[Heartbeat]] = defaultdict(list)
    for heartbeat in evidence.truth.alive:
        heartbeats[heartbeat.datacenter].append(heartbeat)
    return heartbeats


CHECKS = (
    every_run_is_where_it_belongs,
    no_live_data_center_is_replaced,
    every_tick_is_in_each_of_its_datacenters,
    the_ledger_names_replacements,
)
