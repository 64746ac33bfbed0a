"""What there is to measure, in the order it is measured, and the run through it."""

import time
from collections.abc import Callable, Sequence

from bench.api import followers as api_followers
from bench.api import same_key as api_same_key
from bench.api import submit as api_submit
from bench.children import ChildFailed
from bench.engine import (
    claim_cost,
    crons,
    disk,
    drain,
    failover,
    full_cycle,
    herd,
    idle,
    idle_worker,
    policies,
    soak,
    steady,
    submit,
    wheel,
)
from bench.engine.full_cycle import LostOrDoubled
from bench.figures import Figures, median_of_rounds, minutes
from bench.measurement import Bench, Measurement
from bench.sites.site import SiteFactory
from bench.sizes import Sizes
from mainspring.core.model.base.errors import Invalid

ENGINE: tuple[Measurement, ...] = (
    Measurement(
        name="full",
        what="full cycle: submit, run, record; and its ceiling",
        measure=full_cycle.measure,
        estimate=full_cycle.estimate,
    ),
    Measurement(name="drain", what="drain of a full queue", measure=drain.measure, estimate=drain.estimate),
    Measurement(
        name="policies",
        what="full cycle with limits, ordering keys, dependencies and unique keys",
        measure=policies.measure,
        estimate=policies.estimate,
    ),
    Measurement(name="submit", what="submitting", measure=submit.measure, estimate=submit.estimate),
    Measurement(name="idle", what="idle latency", measure=idle.measure, estimate=idle.estimate),
    Measurement(
        name="queues",
        what="an idle worker with 1 to 50 queues",
        measure=idle_worker.measure,
        estimate=idle_worker.estimate,
        rounds=False,
        quick=False,
        embedded=False,
    ),
    Measurement(name="herd", what="5,000 runs due at one instant", measure=herd.measure, estimate=herd.estimate),
    Measurement(name="steady", what="1,000 delayed runs a second", measure=steady.measure, estimate=steady.estimate),
    Measurement(
        name="crons",
        what="10,000 crons due at once",
        measure=crons.measure,
        estimate=crons.estimate,
        rounds=False,
        quick=False,
    ),
    Measurement(
        name="claim",
        what="claims beside future runs",
        measure=claim_cost.measure,
        estimate=claim_cost.estimate,
        rounds=False,
    ),
    Measurement(name="disk", what="bytes a scheduled run", measure=disk.measure, estimate=disk.estimate, rounds=False),
    Measurement(name="wheel", what="the timing wheel", measure=wheel.measure, estimate=wheel.estimate, rounds=False),
    Measurement(
        name="soak",
        what="half an hour of full load",
        measure=soak.measure,
        estimate=soak.estimate,
        rounds=False,
        usual=False,
    ),
    Measurement(
        name="failover",
        what="death of a scheduler and of a worker",
        measure=failover.measure,
        estimate=failover.estimate,
        rounds=False,
        usual=False,
        embedded=False,
    ),
)

API: tuple[Measurement, ...] = (
    Measurement(name="post", what="one job a request", measure=api_submit.measure_single, estimate=api_submit.estimate),
    Measurement(
        name="batch", what="many jobs a request", measure=api_submit.measure_batch, estimate=api_submit.estimate
    ),
    Measurement(
        name="key",
        what="concurrent submits of one idempotency key",
        measure=api_same_key.measure,
        estimate=api_same_key.estimate,
    ),
    Measurement(
        name="followers",
        what="one job a request beside followers of events",
        measure=api_followers.measure,
        estimate=api_followers.estimate,
    ),
)

SUITES = {"engine": ENGINE, "api": API}


def choose(suite: str, names: Sequence[str], *, quick: bool) -> list[Measurement]:
    """Those named, or the usual ones."""
    if suite not in SUITES:
        raise Invalid("suite", f"there is none called {suite!r}", ", ".join(SUITES))
    items = SUITES[suite]
    known = {measurement.name: measurement for measurement in items}
    for name in names:
        if name not in known:
            raise Invalid("--only", f"there is no measurement {name!r}", ", ".join(known))
    usual = [item.name for item in items if item.usual and (item.quick or not quick)]
    return [item for item in items if item.name in (names or usual)]


def estimate(chosen: Sequence[Measurement], sizes: Sizes, *, embedded: bool) -> float:
    """About how many seconds they take."""
    return sum(
        item.estimate(sizes) * (sizes.rounds if item.rounds else 1) for item in chosen if item.embedded or not embedded
    )


async def run(place: SiteFactory, sizes: Sizes, chosen: Sequence[Measurement], tell: Callable[[str], None]) -> Figures:
    """Measure; rounds follow each other within a measurement, and their medians are what is reported."""
    embedded = place.kind == "sqlite"
    wanted = [item for item in chosen if item.embedded or not embedded]
    figures: Figures = {"store": place.kind, "quick": sizes.quick, "rounds": sizes.rounds, "server": place.facts}
    if sizes.scale != 1:
        figures["scale"] = sizes.scale
    bench = Bench(place, sizes, tell)
    took: dict[str, float] = {}
    failed: dict[str, str] = {}
    try:
        for position, item in enumerate(wanted):
            rounds = sizes.rounds if item.rounds else 1
            left = estimate(wanted[position:], sizes, embedded=embedded)
            found: list[Figures] = []
            for number in range(1, rounds + 1):
                bench.progress = f"{place.kind}, about {minutes(left)} left: "
                bench.progress += f"round {number} of {rounds}, " if rounds > 1 else ""
                started = time.monotonic()
                try:
                    found.append(await item.measure(bench))
                except (ChildFailed, LostOrDoubled) as error:
                    # The others can still be measured; this one has no figures.
                    failed[item.name] = str(error)
                    bench.say(f"{item.name} FAILED: {error}")
                    await bench.close()
                took[item.name] = round(took.get(item.name, 0) + time.monotonic() - started, 1)
                left -= item.estimate(sizes)
            if item.name not in failed:
                figures |= median_of_rounds(found)
                figures |= {f"{item.name}_rounds": found} if rounds > 1 else {}
    finally:
        await bench.close()
    return {**figures, "took_s_each": took, "failed": failed}
