"""Policies: the full cycle of runs with limits, ordering keys, dependencies and unique keys, beside plain runs.

Each policy executes the same number of runs: they are submitted in batches while the workers run, and the round ends
when the last one is recorded. So the processor time per run can be compared between two versions of the code.
"""

import asyncio
import time
from collections.abc import Callable
from functools import cache

import msgspec

from bench.engine.full_cycle import LostOrDoubled
from bench.engine.load import Load
from bench.figures import Figures
from bench.measurement import Bench
from bench.sites.system import System
from bench.sizes import Sizes
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.limits.limits import Limit
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.unique import Unique
from mainspring.core.model.workflows.dependencies import Dependencies

_BATCH = 500
_SLOWEST = 50
#: A workflow: one run, those that depend on it, and one that depends on all of these.
_WORKFLOW = 10


async def measure(bench: Bench) -> Figures:
    figures: Figures = {}
    async with bench.system("policies") as system:
        await system.start_services(workers=bench.sizes.workers)
        submitted = await _execute(system, "plain", bench.sizes.policy_warm_up, 0)
        for policy in POLICIES:
            bench.say(f"policies: {bench.sizes.policy_runs:,} runs, {policy}")
            used, started = system.processor_seconds(), time.time_ns() // 1_000
            submitted = await _execute(system, policy, bench.sizes.policy_runs, submitted)
            used = {kind: seconds - used.get(kind, 0) for kind, seconds in system.processor_seconds().items()}
            seconds = ((await system.site.span()).last_finished - started) / 1e6
            figures[f"policy_{policy}_jobs_per_s"] = round(bench.sizes.policy_runs / seconds)
            figures[f"policy_{policy}_processor_us_per_job"] = {
                kind: round(seconds * 1e6 / bench.sizes.policy_runs, 1) for kind, seconds in used.items()
            }
        doubles = await system.site.doubles()
    if doubles:
        raise LostOrDoubled(f"{doubles} runs recorded twice")
    return figures


async def _execute(system: System, policy: str, count: int, before: int) -> int:
    """Submit so many runs and wait for their end; return how many have ended in all."""
    await system.call(submit, policy=policy, count=count)
    give_up_at = time.monotonic() + count / _SLOWEST + 30
    while (unfinished := await system.site.unfinished()) and time.monotonic() < give_up_at:
        system.children.check()
        await asyncio.sleep(0.2)
    ended = (await system.site.span()).runs
    if unfinished or ended != before + count:
        raise LostOrDoubled(f"{policy}: {count} submitted, {ended - before} ended, {unfinished} unfinished")
    return ended


async def submit(load: Load, policy: str, count: int) -> None:
    runtime = await load.runtime()
    for start in range(0, count, _BATCH):
        runs = await load.new_runs(min(_BATCH, count - start))
        await runtime.jobs.submit_many(POLICIES[policy](runs))


def _limit_by_key(runs: list[NewRun]) -> list[NewRun]:
    return [msgspec.structs.replace(run, policy=_at_a_time(number % 20)) for number, run in enumerate(runs)]


def _limit_by_rate(runs: list[NewRun]) -> list[NewRun]:
    return [msgspec.structs.replace(run, policy=_in_period(number % 10)) for number, run in enumerate(runs)]


def _order(runs: list[NewRun]) -> list[NewRun]:
    return [msgspec.structs.replace(run, policy=_ordered(number)) for number, run in enumerate(runs)]


def _depend(runs: list[NewRun]) -> list[NewRun]:
    made: list[NewRun] = []
    for start in range(0, len(runs), _WORKFLOW):
        first, *middle = runs[start : start + _WORKFLOW]
        last = middle.pop() if len(middle) > 1 else None
        made.append(first)
        made += [msgspec.structs.replace(run, after=Dependencies(parents=(first.id,))) for run in middle]
        if last is not None:
            made.append(msgspec.structs.replace(last, after=Dependencies(parents=tuple(run.id for run in middle))))
    return made


def _unique(runs: list[NewRun]) -> list[NewRun]:
    return [msgspec.structs.replace(run, unique=Unique(key=run.id)) for run in runs]


@cache
def _at_a_time(key: int) -> RunPolicy:
    """Twenty keys with 25 runs each occupy half of the slots: this limit binds."""
    return RunPolicy(limits=(Limit(key=f"at-a-time-{key}", most=25),))


@cache
def _in_period(key: int) -> RunPolicy:
    """More starts than there are runs: this limit does not bind."""
    return RunPolicy(limits=(Limit(key=f"in-period-{key}", most=10_000, per=10 * SECOND),))


@cache
def _ordered(key: int) -> RunPolicy:
    return RunPolicy(ordering_key=f"key-{key}")


#: How plain runs get each policy.
POLICIES: dict[str, Callable[[list[NewRun]], list[NewRun]]] = {
    "plain": list,
    "limit": _limit_by_key,
    "rate": _limit_by_rate,
    "ordered": _order,
    "dependent": _depend,
    "unique": _unique,
}


def estimate(sizes: Sizes) -> float:
    return len(POLICIES) * (sizes.policy_runs / 4_000 + 0.3) + 1
