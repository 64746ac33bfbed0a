"""One fault from beginning to end: a fresh cluster, the load, the repetitions, the drain, the judgement."""

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncpg

from tools.chaos.cluster import ROOT, Cluster
from tools.chaos.ensembles import make_ensemble
from tools.chaos.export import ACKNOWLEDGED, FACTS, HISTORY, LEFT, Clocks, Facts
from tools.chaos.faults import Fault
from tools.chaos.load import Load
from tools.chaos.sites import Site

SECOND = 1_000_000
#: Seconds of quiet before the first fault, and after each when the cluster is well again.
WARM_UP, QUIET = 4, 2.2
#: The most that is waited for less to be left, and for submits to be answered.
DRAIN = 150
#: What a worker says of an outcome that the store refused, and a scheduler when others have taken its place.
REFUSED = ("an outcome came too late", "session expired, joining again")


@dataclass
class Outcome:
    fault: str
    coordination: str
    repetitions: int
    rate: int
    crons: int
    refused: int
    sent_again: int
    #: Seconds, until the cluster was gone.
    took: float
    #: As the judge prints it.
    judgement: dict[str, Any]


async def run(
    fault: Fault,
    directory: Path,
    *,
    repetitions: int,
    coordination: str,
    rate: int,
    crons: int,
    keep: bool,
    progress: Callable[[int], None],
) -> "asyncio.Task[Outcome]":
    """``progress`` receives the number of each repetition that begins. The cluster is gone when this returns; the store
    is read and the history judged at the side, with less of the processor than the next cluster has."""
    began = time.monotonic()
    site = fault.site()
    try:
        await asyncio.to_thread(site.open)
        load, facts, refused = await _broken(fault, site, directory, repetitions, coordination, rate, crons, progress)
    except BaseException:
        await asyncio.to_thread(site.close)
        raise
    took = round(time.monotonic() - began, 1)
    (directory / FACTS).write_text(json.dumps(asdict(facts)))

    async def judged() -> Outcome:
        try:
            await _aside("tools.chaos.export", directory)
        finally:
            await asyncio.to_thread(site.close)
        judgement = json.loads(await _aside("tools.judge", directory / HISTORY))
        if judgement["sound"] and not keep:
            shutil.rmtree(directory)
        return Outcome(fault.name, coordination, repetitions, rate, crons, refused, load.sent_again, took, judgement)

    return asyncio.create_task(judged())


async def _broken(
    fault: Fault,
    site: Site,
    directory: Path,
    repetitions: int,
    coordination: str,
    rate: int,
    crons: int,
    progress: Callable[[int], None],
) -> tuple[Load, Facts, int]:
    """The load on a cluster that is broken again and again; what is to be known of it, and the stale writes refused."""
    with ExitStack() as stack:
        ensemble = make_ensemble(coordination, directory / "ensemble")
        if ensemble is not None:
            stack.callback(ensemble.remove)
            await asyncio.to_thread(ensemble.ensure)
        await _prepare(site.server.dsn)
        dsns = [server.dsn for server in site.servers][: 1 if fault.one_address else None]
        ports = [_free_port() for _ in range(2)]
        cluster = Cluster(dsns, directory, ensemble=ensemble, ports=ports, faketime=fault.faketime)
        clocks = Clocks()
        looking = asyncio.create_task(_look_at(clocks))
        try:
            await cluster.start()
            load = Load(cluster.apis, rate, directory / ACKNOWLEDGED)
            jobs = await load.declare(crons)
            load.start()
            await site.replicate()
            await asyncio.sleep(WARM_UP)
            await cluster.until_well(site.server.dsn)
            first = (time.time_ns() // 1_000 // SECOND - 1) * SECOND
            faults = []
            for repetition in range(repetitions):
                progress(repetition)
                faults.append((fault.name, time.time_ns() // 1_000))
                await fault.happen(cluster, site, repetition)
                await cluster.until_well(site.server.dsn)
                await asyncio.sleep(QUIET)
            last = (time.time_ns() // 1_000 // SECOND) * SECOND
            await load.stop(DRAIN)
            await _drain(site.server.dsn, last)
            refused = sum(member.said(words) for member in cluster.members.values() for words in REFUSED)
        finally:
            await cluster.stop()
            looking.cancel()
    return load, Facts(site.server.dsn, jobs, first, last, faults, clocks.seen), refused


async def _prepare(dsn: str) -> None:
    environment = {"MAINSPRING_STORE": dsn, "PYTHONPATH": str(ROOT)}
    migrating = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mainspring", "migrate", env=environment, cwd=ROOT, stdout=subprocess.DEVNULL
    )
    if await migrating.wait():
        raise RuntimeError("the store could not be made")
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("CREATE TABLE public.effects (run text NOT NULL)")
    finally:
        await connection.close()


async def _drain(dsn: str, last: int) -> None:
    """Wait until everything that was due has happened. The judge reports what does not end in time."""
    connection = await asyncpg.connect(dsn)
    least, until = None, time.monotonic() + DRAIN
    try:
        while time.monotonic() < until:
            left = await connection.fetchval(f"SELECT count(*) FROM ({LEFT}) AS l", last)  # noqa: S608
            left += await connection.fetchval("SELECT count(*) FROM mainspring.schedule WHERE next_fire <= $1", last)
            if not left:
                return
            if least is None or left < least:
                least, until = left, time.monotonic() + DRAIN
            await asyncio.sleep(0.25)
    finally:
        await connection.close()


async def _aside(program: str, of: Path) -> bytes:
    """What a program says that gets less of the processor than all others."""
    # Of its own, so that the judge knows nothing of ours, and the wires of the next cluster are not held up.
    running = await asyncio.create_subprocess_exec(
        "nice", "-n", "10", sys.executable, "-m", program, str(of), cwd=ROOT, stdout=subprocess.PIPE
    )
    said, _ = await running.communicate()
    if running.returncode not in (0, 1):
        raise RuntimeError(f"{program} ended with {running.returncode}")
    return said


async def _look_at(clocks: Clocks) -> None:
    while True:
        clocks.look(time.monotonic_ns(), time.time_ns())
        await asyncio.sleep(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
