"""The rules for a history, one function each, and how long each fault was felt."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tools.judge.history import History

SECOND = 1_000_000
#: A handler records its start by another clock than the store's. They agree to this many microseconds.
CLOCKS_AGREE = 2_000
#: A tick that starts this late, or submits that are silent for so long, are felt.
FELT = SECOND
#: Work that was due just before a fault may still be hit by it.
BEFORE = 2 * SECOND


class Wrong(NamedTuple):
    rule: str
    what: str


class Felt(NamedTuple):
    """One fault as those who use the cluster saw it. Microseconds."""

    name: str
    #: How late the latest tick was.
    latest: int
    #: From the fault until the last of what was late had started and submits were answered again.
    recovered: int


@dataclass
class Judgement:
    runs: int
    ticks: int
    felt: list[Felt]
    #: The rules by name, and how often each was broken; also those that were not.
    counts: dict[str, int]
    #: The first few of each.
    examples: list[Wrong] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not any(self.counts.values())


def judge(history: History, *, examples: int = 5) -> Judgement:
    counts: dict[str, int] = {}
    shown: list[Wrong] = []
    for name, rule in RULES.items():
        wrong = list(rule(history))
        counts[name] = len(wrong)
        shown += [Wrong(name, what) for what in wrong[:examples]]
    return Judgement(
        runs=len(history.acknowledged.keys() | history.ends.keys()),
        ticks=len(history.ticks),
        felt=felt(history),
        counts=counts,
        examples=shown,
    )


def lost(history: History) -> Iterator[str]:
    """It was acknowledged, and never ended."""
    for run in history.acknowledged:
        if run not in history.ends:
            yield f"run {run} is {history.left.get(run, 'nowhere')}"


def stuck(history: History) -> Iterator[str]:
    """It was not acknowledged, since its answer was lost, or is a tick's; it is there and never ended."""
    for run, state in history.left.items():
        if run not in history.acknowledged:
            yield f"run {run} is {state}"


def failed(history: History) -> Iterator[str]:
    """It ended otherwise than it should: no task of the load fails by itself."""
    for run, ends in history.ends.items():
        for end in ends:
            if end.state != "succeeded":
                yield f"run {run} {end.state}"


def doubled(history: History) -> Iterator[str]:
    """It ended twice, or left its effect twice, or ended and is still there."""
    for run, ends in history.ends.items():
        if len(ends) > 1:
            yield f"run {run} ended {len(ends)} times"
        if run in history.left:
            yield f"run {run} has ended and is {history.left[run]}"
    for run, times in history.effects.items():
        if times > 1:
            yield f"run {run} left its effect {times} times"


def made_twice(history: History) -> Iterator[str]:
    """Something that was sent again under its idempotency key became two runs."""
    for key, runs in history.runs_of_keys.items():
        if len(runs) > 1:
            yield f"key {key} has the runs {sorted(runs)}"


def torn(history: History) -> Iterator[str]:
    """Its effect and its end are one transaction, and only one of them is there."""
    succeeded = {run for run, ends in history.ends.items() if any(end.state == "succeeded" for end in ends)}
    for run in history.with_effect & succeeded:
        if run not in history.effects:
            yield f"run {run} succeeded without its effect"
    for run in history.effects:
        if run not in succeeded:
            yield f"run {run} left its effect and has not succeeded"


def unstarted(history: History) -> Iterator[str]:
    """It succeeded under a fence under which no handler ever began."""
    for run, ends in history.ends.items():
        fences = {start.fence for start in history.starts.get(run, ())}
        for end in ends:
            if end.state == "succeeded" and end.fence not in fences:
                yield f"run {run} succeeded under fence {end.fence}, and began under {sorted(fences)}"


def begun_twice(history: History) -> Iterator[str]:
    """Two handlers began under one fence: an outside system could not tell them apart."""
    for run, starts in history.starts.items():
        fences = [start.fence for start in starts]
        if len(fences) != len(set(fences)):
            yield f"run {run} began under {sorted(fences)}"


def early(history: History) -> Iterator[str]:
    """It began before it was due, by the handler's account or the store's own."""
    for run, starts in history.starts.items():
        for start in starts:
            if start.at < start.due - CLOCKS_AGREE:
                yield f"run {run} began {start.due - start.at} µs early"
    for run, ends in history.ends.items():
        for end in ends:
            if end.started is not None and end.started < end.due:
                yield f"run {run} is said to have started {end.due - end.started} µs early"


def missed(history: History) -> Iterator[str]:
    """A tick that is in no ledger, is there as skipped, or names a run that is not to be found."""
    for job, expected in history.expected.items():
        for tick in range(expected.first, expected.last + 1, expected.every):
            rows = history.ticks.get((job, tick), ())
            if not any(row.decision == "run" for row in rows):
                yield f"tick {tick} of {job}: {rows[0].decision if rows else 'no row'}"
    for (job, tick), rows in history.ticks.items():
        for row in rows:
            if row.run is not None and row.run not in history.ends and row.run not in history.left:
                yield f"tick {tick} of {job}: its run {row.run} is nowhere"


def ticked_twice(history: History) -> Iterator[str]:
    """A tick with two rows or two runs, or a run for a moment that is no tick."""
    for (job, tick), rows in history.ticks.items():
        if len(rows) > 1:
            yield f"tick {tick} of {job} has {len(rows)} rows"
        expected = history.expected.get(job)
        if expected is not None and (tick - expected.first) % expected.every:
            yield f"tick {tick} of {job} is none of its schedule"
    for (job, tick), runs in history.runs_of_ticks.items():
        recorded = {row.run for row in history.ticks.get((job, tick), ())}
        if len(runs | recorded - {None}) > 1:
            yield f"tick {tick} of {job} has the runs {sorted(runs)}"
        elif not recorded:
            yield f"tick {tick} of {job} has a run and no row"


def stale(history: History) -> Iterator[str]:
    """A process wrote after it lost ownership, and the store accepted it. A worker whose lease has expired may still
    complete a run that no other worker has claimed: the fence decides, not the lease."""
    for run, ends in history.ends.items():
        begun, given_up = history.starts.get(run, ()), history.given_up.get(run, ())
        for end in ends:
            if end.state != "succeeded":
                continue
            if any(start.fence > end.fence for start in begun):
                yield f"run {run} succeeded under fence {end.fence} when a newer one had begun"
            if end.fence in given_up:
                yield f"run {run} succeeded under fence {end.fence}, which had been taken away"
    by_job: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for (job, tick), rows in history.ticks.items():
        by_job[job] += [(tick, row.epoch) for row in rows]
    for job, recorded in by_job.items():
        for (_, before), (tick, after) in pairwise(sorted(recorded)):
            if after < before:
                yield f"tick {tick} of {job} was fired under epoch {after} after one under {before}"


RULES = {
    "lost": lost,
    "stuck": stuck,
    "failed": failed,
    "doubled": doubled,
    "made twice": made_twice,
    "torn": torn,
    "unstarted": unstarted,
    "begun twice": begun_twice,
    "early": early,
    "missed": missed,
    "ticked twice": ticked_twice,
    "stale": stale,
}


def felt(history: History) -> list[Felt]:
    """What each fault did to the ticks and submits between it and the next one."""
    faults = sorted(history.faults)
    if not faults:
        return []
    ends = [fault.at - BEFORE for fault in faults[1:]] + [1 << 62]
    late = sorted(_ticks_started(history))
    answers = sorted(history.acknowledged.values())
    found: list[Felt] = []
    for fault, end in zip(faults, ends, strict=True):
        window = [(tick, began) for tick, began in late if fault.at - BEFORE <= tick < end]
        latest = max((began - tick for tick, began in window), default=0)
        slow = max((began for tick, began in window if began - tick > FELT), default=fault.at)
        silent = _last_silence([at for at in answers if fault.at - BEFORE <= at < end], fault.at)
        found.append(Felt(fault.name, latest, max(slow, silent) - fault.at))
    return found


def _ticks_started(history: History) -> Iterable[tuple[int, int]]:
    """(tick, when it first began) of every run of a tick that began."""
    for (_, tick), runs in history.runs_of_ticks.items():
        began = [start.at for run in runs for start in history.starts.get(run, ())]
        if began:
            yield tick, min(began)


def _last_silence(answers: list[int], fault: int) -> int:
    """When submits were answered again after their last long silence."""
    return max((after for before, after in pairwise(answers) if after - before > FELT and after > fault), default=fault)
