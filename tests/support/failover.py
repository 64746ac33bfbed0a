"""Measure how late ticks are when a scheduler is killed, frozen or stopped, or its coordinator is away.

python -m tests.support.failover --coordinator etcd --fault kill --repeat 10
python -m tests.support.failover --coordinator etcd --fault away      # all nodes of the coordinator, for a minute
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import msgspec

from tests.support.scheduler_cluster import SECOND, Cluster, RunMetrics, Ticks, cluster
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tools.services import ensure
from tools.services.ensemble import Ensemble, Node, ask
from tools.services.etcd import Etcd, StockEtcd
from tools.services.redis import Redis
from tools.services.zookeeper import StockZooKeeper, ZooKeeper

#: Show the logs if a tick is later than this.
LATE = 2.0
LEADER_AWAY_SECONDS = 6.0
BREAKABLE: dict[str, type[Ensemble]] = {"redis": Redis, "etcd": Etcd, "zookeeper": ZooKeeper}
STOCK: dict[str, type[Ensemble]] = {"etcd-stock": StockEtcd, "zookeeper-stock": StockZooKeeper}


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    #: Seconds that a worker took for runs that were submitted during the outage.
    worked: float
    #: Seconds from the return of the coordinator to the first tick that is not late.
    back: float
    ticks: Ticks


@contextmanager
def throwaway(kind: type[Ensemble]) -> Iterator[Ensemble]:
    """Start servers that a test may break; remove them at the end."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        ensemble = kind(Path(folder))
        ensemble.start()
        try:
            yield ensemble
        finally:
            ensemble.remove()


@contextmanager
def lend_address(coordinator: str) -> Iterator[str]:
    """The address of a server in ``tools/services``, of one with its default settings, or ``store``."""
    if coordinator in STOCK:
        with throwaway(STOCK[coordinator]) as ensemble:
            yield ensemble.address()
    else:
        yield coordinator if coordinator == "store" else ensure(coordinator)


async def measure(coordinator: str, fault: str, repeat: int) -> dict[str, object]:
    metrics: list[RunMetrics] = []
    with lend_address(coordinator) as address:
        async with cluster(ensure("postgres"), address) as found:
            for number in range(repeat):
                # A random moment between two renewals.
                await asyncio.sleep(random.random() / 4)
                metrics.append(await found.end(list(found.schedulers)[number % len(found.schedulers)], fault))
                sys.stderr.write(f"{number}: moved {metrics[-1].moved:.2f} s, latest {metrics[-1].latest:.2f} s\n")
                if metrics[-1].latest > LATE:
                    sys.stderr.write(found.logs() + "\n")
            ticks = await found.ticks()
    moved, latest = (sorted(getattr(figure, name) for figure in metrics) for name in ("moved", "latest"))
    return {
        "coordinator": coordinator,
        "fault": fault,
        "repetitions": repeat,
        "moved_p50": round(moved[len(moved) // 2], 2),
        "moved_max": round(moved[-1], 2),
        "latest_p50": round(latest[len(latest) // 2], 2),
        "latest_max": round(latest[-1], 2),
        **msgspec.to_builtins(ticks),
    }


async def outage(found: Cluster, ensemble: Ensemble, seconds: float = 0, runs: int = 200) -> Outage:
    """Freeze every node of the coordinator until no tick fires and a worker has completed runs, or for longer."""
    found.start_worker()
    begun = time.monotonic()
    try:
        for node in ensemble.nodes:
            node.signal(signal.SIGSTOP)
        await found.until(found.stands_still)
        worked = await found.work(runs)
        await asyncio.sleep(max(0.0, begun + seconds - time.monotonic()))
    finally:
        for node in ensemble.nodes:
            node.signal(signal.SIGCONT)
    back = await found.until_fires()
    await found.until_balanced()
    return Outage(worked=worked, back=back, ticks=await found.ticks())


async def measure_outage(coordinator: str, seconds: float) -> dict[str, object]:
    with throwaway(BREAKABLE[coordinator]) as ensemble:
        async with cluster(ensure("postgres"), ensemble.address()) as found:
            metrics = await outage(found, ensemble, seconds)
    return {
        "coordinator": coordinator,
        "away": seconds,
        "worker_seconds_for_200_runs": round(metrics.worked, 2),
        "fires_again_after": round(metrics.back, 2),
        **msgspec.to_builtins(metrics.ticks),
    }


async def measure_leader(coordinator: str, fault: str, repeat: int) -> dict[str, object]:
    """Kill or freeze the leader of the coordinator, let it return, and measure the latest tick each time."""
    latest: list[float] = []
    with throwaway((BREAKABLE | STOCK)[coordinator]) as ensemble:
        async with cluster(ensure("postgres"), ensemble.address()) as found:
            for number in range(repeat):
                begun = int(time.time()) * SECOND
                leader = await asyncio.to_thread(find_leader, ensemble)
                leader.signal(signal.SIGKILL if fault == "kill-leader" else signal.SIGSTOP)
                await asyncio.sleep(LEADER_AWAY_SECONDS)
                leader.signal(signal.SIGCONT)
                leader.start()
                await asyncio.to_thread(ensemble.wait)
                await found.until_balanced()
                latest.append((await found.ticks(since=begun - 2 * SECOND)).latest)
                sys.stderr.write(f"{number}: latest {latest[-1]:.2f} s\n")
            ticks = await found.ticks()
    latest.sort()
    return {
        "coordinator": coordinator,
        "fault": fault,
        "repetitions": repeat,
        "latest_p50": round(latest[len(latest) // 2], 2),
        "latest_max": round(latest[-1], 2),
        **msgspec.to_builtins(ticks),
    }


def find_leader(ensemble: Ensemble) -> Node:
    [leader] = wait_until(lambda: [node for node in ensemble.nodes if leads(ensemble, node)][:1])
    return leader


def leads(ensemble: Ensemble, node: Node) -> bool:
    if isinstance(ensemble, Etcd):
        status = httpx2.post(f"http://{node.address}/v3/maintenance/status", json={}, timeout=DEADLINE_SECONDS).json()
        return bool(status["header"]["member_id"] == status.get("leader"))
    return b"Mode: leader" in ask(node.address, b"srvr")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--coordinator", default="store", help="store, redis, etcd, zookeeper, etcd-stock, zookeeper-stock"
    )
    parser.add_argument(
        "--fault", default="kill", choices=["kill", "stop", "leave", "away", "kill-leader", "stop-leader"]
    )
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60, help="how long the coordinator is away")
    arguments = parser.parse_args()
    if arguments.fault == "away":
        found = asyncio.run(measure_outage(arguments.coordinator, arguments.seconds))
    elif arguments.fault.endswith("-leader"):
        found = asyncio.run(measure_leader(arguments.coordinator, arguments.fault, arguments.repeat))
    else:
        found = asyncio.run(measure(arguments.coordinator, arguments.fault, arguments.repeat))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
