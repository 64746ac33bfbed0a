"""Real schedulers on PostgreSQL that are killed, frozen and stopped, and what that does to the ticks of crons.

python -m tests.support.failover --engine etcd --fault kill --repeat 10
python -m tests.support.failover --engine etcd --fault away      # all of its nodes, for a minute
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

from tests.support.scheduler_cluster import SECOND, Cluster, Figures, Ticks, cluster
from tools.services import ensure
from tools.services.ensemble import Ensemble, Node, ask
from tools.services.etcd import Etcd, StockEtcd
from tools.services.redis import Redis
from tools.services.zookeeper import StockZooKeeper, ZooKeeper

#: What is later than this needs an explanation, so the logs are shown.
LATE = 2.0
BREAKABLE: dict[str, type[Ensemble]] = {"redis": Redis, "etcd": Etcd, "zookeeper": ZooKeeper}
STOCK: dict[str, type[Ensemble]] = {"etcd-stock": StockEtcd, "zookeeper-stock": StockZooKeeper}


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    #: Seconds that a worker took for what was submitted meanwhile.
    worked: float
    #: Seconds from the return of the engine to the first tick that is not late.
    back: float
    ticks: Ticks


@contextmanager
def throwaway(kind: type[Ensemble]) -> Iterator[Ensemble]:
    """Servers of our own, which may be broken."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        ensemble = kind(Path(folder))
        ensemble.start()
        try:
            yield ensemble
        finally:
            ensemble.remove()


@contextmanager
def address_of(engine: str) -> Iterator[str]:
    """By its name in ``tools/services``; ``store``, and the servers as they come when nobody sets anything."""
    if engine in STOCK:
        with throwaway(STOCK[engine]) as ensemble:
            yield ensemble.address()
    else:
        yield engine if engine == "store" else ensure(engine)


async def measure(engine: str, fault: str, repeat: int) -> dict[str, object]:
    figures: list[Figures] = []
    with address_of(engine) as address:
        async with cluster(ensure("postgres"), address) as found:
            for number in range(repeat):
                # Somewhere between two renewals, as it would happen.
                await asyncio.sleep(random.random() / 4)
                figures.append(await found.end(list(found.schedulers)[number % len(found.schedulers)], fault))
                sys.stderr.write(f"{number}: moved {figures[-1].moved:.2f} s, latest {figures[-1].latest:.2f} s\n")
                if figures[-1].latest > LATE:
                    sys.stderr.write(found.logs() + "\n")
            ticks = await found.ticks()
    moved, latest = (sorted(getattr(figure, name) for figure in figures) for name in ("moved", "latest"))
    return {
        "engine": engine,
        "fault": fault,
        "repetitions": repeat,
        "moved_p50": round(moved[len(moved) // 2], 2),
        "moved_max": round(moved[-1], 2),
        "latest_p50": round(latest[len(latest) // 2], 2),
        "latest_max": round(latest[-1], 2),
        **msgspec.to_builtins(ticks),
    }


async def outage(found: Cluster, ensemble: Ensemble, seconds: float, runs: int = 200) -> Outage:
    """Every node of the engine is frozen for a while: what was due fires late, and workers go on."""
    found.start_worker()
    begun = time.monotonic()
    try:
        for node in ensemble.nodes:
            node.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds / 2)
        worked = await found.work(runs)
        await asyncio.sleep(begun + seconds - time.monotonic())
    finally:
        for node in ensemble.nodes:
            node.signal(signal.SIGCONT)
    back = await found.until(found.fires, 0.01)
    await found.settled()
    await asyncio.sleep(3)
    return Outage(worked=worked, back=back, ticks=await found.ticks())


async def measure_outage(engine: str, seconds: float) -> dict[str, object]:
    with throwaway(BREAKABLE[engine]) as ensemble:
        async with cluster(ensure("postgres"), ensemble.address()) as found:
            figures = await outage(found, ensemble, seconds)
    return {
        "engine": engine,
        "away": seconds,
        "worker_seconds_for_200_runs": round(figures.worked, 2),
        "fires_again_after": round(figures.back, 2),
        **msgspec.to_builtins(figures.ticks),
    }


async def measure_leader(engine: str, fault: str, repeat: int) -> dict[str, object]:
    """The node that leads the engine is killed or frozen, and comes back: how late was the latest tick each time?"""
    latest: list[float] = []
    with throwaway((BREAKABLE | STOCK)[engine]) as ensemble:
        async with cluster(ensure("postgres"), ensemble.address()) as found:
            for number in range(repeat):
                begun = int(time.time()) * SECOND
                leader = await asyncio.to_thread(leader_of, ensemble)
                leader.signal(signal.SIGKILL if fault == "kill-leader" else signal.SIGSTOP)
                await asyncio.sleep(6)
                leader.signal(signal.SIGCONT)
                leader.start()
                await asyncio.to_thread(ensemble.wait)
                await found.settled()
                await asyncio.sleep(3)
                latest.append((await found.ticks(since=begun - 2 * SECOND)).latest)
                sys.stderr.write(f"{number}: latest {latest[-1]:.2f} s\n")
            ticks = await found.ticks()
    latest.sort()
    return {
        "engine": engine,
        "fault": fault,
        "repetitions": repeat,
        "latest_p50": round(latest[len(latest) // 2], 2),
        "latest_max": round(latest[-1], 2),
        **msgspec.to_builtins(ticks),
    }


def leader_of(ensemble: Ensemble) -> Node:
    while True:
        for node in ensemble.nodes:
            if leads(ensemble, node):
                return node
        time.sleep(0.05)


def leads(ensemble: Ensemble, node: Node) -> bool:
    if isinstance(ensemble, Etcd):
        status = httpx2.post(f"http://{node.address}/v3/maintenance/status", json={}).json()
        return bool(status["header"]["member_id"] == status.get("leader"))
    return b"Mode: leader" in ask(node.address, b"srvr")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="store", help="store, redis, etcd, zookeeper, etcd-stock, zookeeper-stock")
    parser.add_argument(
        "--fault", default="kill", choices=["kill", "stop", "leave", "away", "kill-leader", "stop-leader"]
    )
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60, help="how long the engine is away")
    arguments = parser.parse_args()
    if arguments.fault == "away":
        found = asyncio.run(measure_outage(arguments.engine, arguments.seconds))
    elif arguments.fault.endswith("-leader"):
        found = asyncio.run(measure_leader(arguments.engine, arguments.fault, arguments.repeat))
    else:
        found = asyncio.run(measure(arguments.engine, arguments.fault, arguments.repeat))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
