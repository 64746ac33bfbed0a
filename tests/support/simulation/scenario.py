"""The scenario that a seed draws: the processes, their settings, and the rates of faults."""

from random import Random

import msgspec

from mainspring.core.model.base.instant import MILLISECOND, MINUTE, SECOND, Instant, Micros, parse_instant
from mainspring.core.worker.settings import ChildSettings, WorkerSettings
from tests.support.simulation.faults import CALM, Rates

_SOME_DAY: Instant = parse_instant("2026-05-12T10:00:00Z")


class Chaos(msgspec.Struct, frozen=True, kw_only=True):
    """How often each fault happens, as weights; 0 is never."""

    #: The mean time between two faults.
    every: Micros = 1_500 * MILLISECOND
    freeze: float = 0.0
    kill: float = 0.0
    #: Stopped as by a deployment, and started again.
    restart: float = 0.0
    cut_off: float = 0.0
    store_away: float = 0.0
    break_operation: float = 0.0
    #: The wall clock of a node is set.
    step_clock: float = 0.0
    #: The store's own clock is set, as when another server takes over.
    step_store_clock: float = 0.0
    #: All workers of a data center die, and stay down for a while.
    lose_datacenter: float = 0.0

    def weights(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "every"}


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    start: Instant = _SOME_DAY
    shards: int = 4
    schedulers: int = 2
    #: The slots of each worker.
    workers: tuple[dict[str, int], ...] = ({"default": 4}, {"default": 4})
    shard_lease: Micros = 1_500 * MILLISECOND
    worker: WorkerSettings = WorkerSettings()
    rates: Rates = CALM
    chaos: Chaos = Chaos()
    #: The timeout of a client for an answer of the store.
    patience: Micros = 2 * SECOND
    skew: Micros = 0
    #: Durations of the phases: faults, recovery, and a calm stretch in which everything is on time.
    troubled: Micros = 16 * SECOND
    settling: Micros = 8 * SECOND
    calm: Micros = 5 * SECOND
    #: After these, all runs must have ended within this time.
    ending: Micros = 240 * SECOND
    runs: int = 40
    jobs: int = 4
    #: Clients cancel, pause and change things.
    meddling: float = 0.5
    #: Schedulers look ahead. Without that they still find everything.
    use_wheel: bool = True
    #: The first worker is of an older version, which does not know every task.
    old_worker: bool = False
    #: Runs that end every process they run in, for each client.
    killers: int = 0
    #: Runs that cannot be stopped at all, for each client.
    immortals: int = 0
    #: The share of runs with limits, a breaker, parents or a unique key.
    policies: float = 0.0
    #: How often an operator changes queues and calendars.
    operating: int = 0
    #: The share of runs that take several slots. It also adds tenants.
    heavy: float = 0.0
    #: The data center of each worker, or an empty string. Without any, no run names a data center.
    datacenters: tuple[str, ...] = ()
    #: Workers claim by hints of a broker.
    broker: bool = False


def a_worker(lease: Micros) -> WorkerSettings:
    return WorkerSettings(
        lease=lease,
        heartbeat_interval=lease // 4,
        lease_margin=lease // 5,
        claim_timeout=1_500 * MILLISECOND,
        poll_interval=500 * MILLISECOND,
        grace=2 * SECOND,
        kill_grace=500 * MILLISECOND,
        children=ChildSettings(
            children=1, threads_per_child=2, start_timeout=5 * SECOND, start_patience=3 * SECOND, patience=SECOND
        ),
    )


def draw(seed: int) -> Scenario:
    """Draw the scenario of a seed. Every seed omits some kinds of faults, so that the others stand out."""
    chance = Random(f"scenario {seed}")

    def sometimes(probability: float, most: float) -> float:
        return most * chance.random() if chance.random() < probability else 0.0

    queues = [{"default": chance.randint(1, 6)} for _ in range(chance.randint(2, 6))]
    for slots in queues:
        if chance.random() < 0.5:
            slots["other"] = chance.randint(1, 3)
    # Every queue has a worker that knows all tasks.
    queues[1].setdefault("other", 2)
    bad_line = chance.random() < 0.85
    rates = Rates(
        latency=chance.choice([200, 1_000, 5_000]),
        slow=sometimes(0.5, 0.1) if bad_line else 0.0,
        refused=sometimes(0.6, 0.15) if bad_line else 0.0,
        reply_lost=sometimes(0.7, 0.25) if bad_line else 0.0,
        late=sometimes(0.7, 0.25) if bad_line else 0.0,
        notify_lost=chance.choice([0.0, 0.3, 1.0]),
    )
    chaos = Chaos(
        every=chance.choice([800, 1_500, 3_000]) * MILLISECOND,
        freeze=sometimes(0.75, 3),
        kill=sometimes(0.75, 3),
        restart=sometimes(0.5, 2),
        cut_off=sometimes(0.5, 2),
        store_away=sometimes(0.4, 1),
        break_operation=sometimes(0.4, 1),
        step_clock=sometimes(0.4, 1),
        step_store_clock=sometimes(0.15, 0.5),
    )
    patience = chance.choice([500, 1_000, 2_000]) * MILLISECOND
    return Scenario(
        seed=seed,
        # The world starts shortly before a full minute.
        start=_SOME_DAY + chance.randrange(600) * MINUTE + chance.randrange(45, 60) * SECOND,
        schedulers=chance.choice([2, 2, 2, 3, 4]),
        workers=tuple(queues),
        worker=msgspec.structs.replace(
            a_worker(chance.choice([3, 4, 10]) * SECOND),
            recycle_after_runs=chance.randint(5, 30) if chance.random() < 0.2 else None,
        ),
        use_wheel=chance.random() < 0.85,
        old_worker=chance.random() < 0.15,
        rates=rates,
        chaos=chaos,
        patience=patience,
        skew=chance.choice([0, 2 * SECOND, 60 * MINUTE]),
        settling=3 * patience + 2 * SECOND,
        runs=chance.choice([20, 40, 70]),
        jobs=chance.choice([2, 4, 6, 8]),
        meddling=chance.choice([0.0, 0.5, 1.0]),
        killers=chance.choice([0, 0, 0, 1, 2]),
        immortals=1 if chance.random() < 0.05 else 0,
        policies=chance.choice([0.0, 0.3, 0.6]),
        operating=chance.choice([0, 6, 14]),
        heavy=chance.choice([0.0, 0.3]),
    )


def scenario_of(seed: int) -> Scenario:
    """The scenario that tests use for a seed. Every fourth has data centers, every eighth a broker."""
    return draw_datacenters(seed) if seed % 4 == 3 else msgspec.structs.replace(draw(seed), broker=seed % 8 == 5)


def draw_datacenters(seed: int) -> Scenario:
    """The scenario of a seed, with workers in data centers. Each has a worker that knows all tasks."""
    scenario, chance = draw(seed), Random(f"places {seed}")
    datacenters = ["", "us", *(chance.choice(["us", "eu", "eu", ""]) for _ in scenario.workers[2:])]
    if not scenario.old_worker:
        datacenters[0] = chance.choice(["eu", "eu", "us", ""])
    lose_datacenter = 3 * chance.random() if chance.random() < 0.8 else 0.0
    chaos = msgspec.structs.replace(scenario.chaos, lose_datacenter=lose_datacenter)
    return msgspec.structs.replace(scenario, datacenters=tuple(datacenters), chaos=chaos)
