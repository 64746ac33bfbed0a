"""Mainspring, a peer, the next peer, Mainspring again: rounds are interleaved, and medians are reported."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console

from bench import machine
from bench.children import ChildFailed
from bench.figures import Figures
from bench.peers import report
from bench.peers.adapter import Programs
from bench.peers.celery.adapter import PEER as CELERY
from bench.peers.graphile_worker.adapter import PEER as GRAPHILE_WORKER
from bench.peers.mainspring.adapter import PEER as MAINSPRING
from bench.peers.measurements import MEASUREMENTS
from bench.peers.pg_boss.adapter import PEER as PG_BOSS
from bench.peers.pgqueuer.adapter import PEER as PGQUEUER
from bench.peers.procrastinate.adapter import PEER as PROCRASTINATE
from bench.peers.report import Result
from bench.peers.river.adapter import PEER as RIVER
from bench.peers.site import Servers, Wrong, facts, peer_site
from bench.sites.local_broker import address_of
from bench.sizes import Sizes, scaled
from mainspring.core.model.base.errors import Invalid
from tools.services.local_postgres import PostgresUnavailable, throwaway_postgres
from tools.services.service import ServiceUnavailable

PEERS = {peer.name: peer for peer in (MAINSPRING, GRAPHILE_WORKER, RIVER, PG_BOSS, PGQUEUER, PROCRASTINATE, CELERY)}
SIZES = Sizes(rounds=3, seconds=8, warm_up=3, drain=100_000, submit_seconds=1.5, idle_samples=150)
QUICK = Sizes(quick=True, rounds=1, seconds=3, warm_up=1, drain=20_000, submit_seconds=0.5, idle_samples=30, herd=1_000)

Say = Callable[[str], None]


def install(names: Sequence[str], say: Say) -> tuple[dict[str, Programs], dict[str, str]]:
    """Return what could be installed, and why the others are skipped."""
    programs: dict[str, Programs] = {}
    skipped: dict[str, str] = {}
    for name in names:
        try:
            programs[name] = PEERS[name].install()
        except ServiceUnavailable as error:
            skipped[name] = str(error).partition("\n")[0]
            say(f"{name} skipped: {error}")
    return programs, skipped


async def measure(
    programs: Mapping[str, Programs], servers: Servers, sizes: Sizes, only: Sequence[str], say: Say
) -> tuple[dict[str, list[Figures]], dict[str, str]]:
    """Every measurement of each peer, round by round. What failed in one round is left out of it, and reported."""
    rounds: dict[str, list[Figures]] = {name: [] for name in programs}
    failed: dict[str, str] = {}
    for number in range(1, sizes.rounds + 1):
        for name in programs:
            rounds[name].append({})
        for item in only:
            what, measurement = MEASUREMENTS[item]
            for name, installed in programs.items():
                say(f"round {number} of {sizes.rounds}: {name}: {what}")
                try:
                    async with peer_site(PEERS[name], installed, servers) as site:
                        rounds[name][-1] |= await measurement(site, sizes)
                except (ChildFailed, Wrong) as error:
                    failed[f"{name}, {what}, round {number}"] = str(error)
                    say(f"{name}: {what} FAILED: {error}")
    return rounds, failed


def run(names: Sequence[str], sizes: Sizes, only: Sequence[str], say: Say) -> Result:
    load = os.getloadavg()[0]
    programs, skipped = install(names, say)
    with contextlib.ExitStack() as stack:
        redis = ""
        if any(PEERS[name].server == "redis" for name in programs):
            try:
                redis = stack.enter_context(address_of("redis"))
            except Invalid as error:
                for name in [name for name in programs if PEERS[name].server == "redis"]:
                    skipped[name] = str(error)
                    say(f"{name} skipped: {error}")
                    del programs[name]
        say("starting a PostgreSQL server")
        server = stack.enter_context(throwaway_postgres())
        servers = Servers(postgres=server.dsn, postgres_pid=server.pid or 0, redis=redis)
        described = asyncio.run(facts(servers))
        rounds, failed = asyncio.run(measure(programs, servers, sizes, only, say))
    return Result(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine.facts() | {"load_before": round(load, 2)},
        server=described,
        versions={name: installed.version for name, installed in programs.items()},
        rounds=rounds,
        failed=failed,
        skipped=skipped,
        representative=sizes.scale == 1 and not sizes.quick,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of smaller numbers")
    parser.add_argument("--rounds", type=int, help="take medians of this many rounds (3)")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"some of {','.join(PEERS)}")
    parser.add_argument("--only", default=",".join(MEASUREMENTS), help=f"some of {','.join(MEASUREMENTS)}")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--merge", nargs="+", metavar="RESULT.json", help="measure nothing; merge results of --json")
    parser.add_argument("--markdown", action="store_true", help="the table of the documentation on stdout")
    parser.add_argument("--install", action="store_true", help="install the peers and measure nothing")
    parser.add_argument("--scale", type=float, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names, only = options.peers.split(","), options.only.split(",")
    if unknown := ({*names} - {*PEERS}) | ({*only} - {*MEASUREMENTS}):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    console = Console(stderr=options.json or options.markdown, highlight=False)

    def say(words: str) -> None:
        console.print(words, markup=False)

    # Ended from outside: leave by way of everything that cleans up, as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.install:
        return 1 if install(names, say)[1] else 0
    if options.merge:
        result = report.merge([report.read(Path(name)) for name in options.merge])
    else:
        sizes = scaled(QUICK if options.quick else SIZES, options.scale)
        if options.rounds:
            sizes = msgspec.structs.replace(sizes, rounds=options.rounds)
        say(machine.describe(machine.facts()))
        try:
            result = run(names, sizes, only, say)
        except PostgresUnavailable as error:
            parser.error(f"no PostgreSQL server can be started here: {error}")
    console.print(report.table(result))
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(result)).decode() + "\n")
    if options.markdown:
        sys.stdout.write(report.markdown(result))
    return 1 if result.failed else 0


if __name__ == "__main__":
    sys.exit(main())
