"""How much is measured: everything, or enough for a first impression."""

import msgspec

from mainspring.core.model.cluster.coordination import STORE

#: What one no-op carries in every measurement: 168 bytes of JSON, as the arguments of an ordinary call would be.
PAYLOAD = b'{"user_id":123456,"email":"someone@example.com","note":"' + b"x" * 110 + b'"}'
QUEUE = "bench"
TASK = "nothing"
STAMP = "stamp"


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of jobs, and durations in seconds."""

    quick: bool = False
    #: Less than 1: everything in small, and the figures mean nothing.
    scale: float = 1
    rounds: int = 3
    #: The broker: the store, or the address of another one.
    dispatch: str = STORE
    #: The steady window of the full cycle, what goes before it, and how long the ceiling is measured beside it.
    seconds: float = 60
    warm_up: float = 8
    ceiling_seconds: float = 20
    #: Runs that are submitted ahead of the workers in the full cycle.
    backlog: int = 20_000
    drain: int = 200_000
    #: Runs of each policy, and plain runs before them.
    policy_runs: int = 20_000
    policy_warm_up: int = 2_000
    submit_seconds: float = 5
    submit_tasks: int = 64
    submit_batch: int = 1_000
    idle_samples: int = 400
    idle_worker_seconds: float = 20
    herd: int = 5_000
    steady_rate: int = 1_000
    steady_seconds: float = 15
    crons: int = 10_000
    #: Claims are timed beside none and beside each of these numbers of future runs.
    future: tuple[int, ...] = (1_000_000, 10_000_000)
    claims: int = 60
    #: Scheduled runs of 500 bytes, for what one takes on disk.
    stored: int = 1_000_000
    wheel: int = 1_000_000
    soak_seconds: float = 1_800
    #: Worker processes, where the store allows more than one: what is fastest on two cores. In the full cycle the
    #: submitting process has a core of its own to use; in a drain it has nothing to do.
    workers: int = 1
    drain_workers: int = 2
    #: The API: how long each load lasts, what goes before it, and how much there is of everything.
    api_seconds: float = 10
    api_warm_up: float = 2
    api_connections: int = 64
    api_batch: int = 1_000
    api_batch_connections: int = 4
    api_keys: int = 500
    api_same_key: int = 32
    api_followers: int = 1_000


QUICK = Sizes(
    quick=True,
    rounds=1,
    seconds=10,
    warm_up=1.5,
    ceiling_seconds=3,
    drain=30_000,
    policy_runs=3_000,
    policy_warm_up=1_000,
    submit_seconds=0.8,
    idle_samples=60,
    idle_worker_seconds=5,
    steady_seconds=3,
    future=(1_000_000,),
    claims=20,
    stored=100_000,
    api_seconds=3,
    api_warm_up=1,
    api_keys=100,
)


def scaled(sizes: Sizes, factor: float) -> Sizes:
    """The same in small, for trying out the benchmark itself: what it measures then means nothing."""
    if factor == 1:
        return sizes

    def less(number: int, least: int = 1) -> int:
        return max(least, round(number * factor))

    return msgspec.structs.replace(
        sizes,
        scale=factor,
        seconds=max(0.5, sizes.seconds * factor),
        warm_up=max(0.3, sizes.warm_up * factor),
        ceiling_seconds=max(0.3, sizes.ceiling_seconds * factor),
        backlog=less(sizes.backlog, 1_000),
        drain=less(sizes.drain, 500),
        policy_runs=less(sizes.policy_runs, 100),
        policy_warm_up=less(sizes.policy_warm_up, 20),
        submit_seconds=max(0.2, sizes.submit_seconds * factor),
        idle_samples=less(sizes.idle_samples, 10),
        idle_worker_seconds=max(0.3, sizes.idle_worker_seconds * factor),
        herd=less(sizes.herd, 50),
        steady_seconds=max(1.0, sizes.steady_seconds * factor),
        crons=less(sizes.crons, 50),
        future=tuple(less(number, 1_000) for number in sizes.future),
        claims=less(sizes.claims, 5),
        stored=less(sizes.stored, 1_000),
        wheel=less(sizes.wheel, 1_000),
        soak_seconds=max(2.0, sizes.soak_seconds * factor),
        api_seconds=max(0.3, sizes.api_seconds * factor),
        api_warm_up=max(0.2, sizes.api_warm_up * factor),
        api_keys=less(sizes.api_keys, 5),
        api_followers=less(sizes.api_followers, 20),
    )
