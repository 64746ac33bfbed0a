"""Simulate many seeds on every core: ``make soak-simulation SEEDS=10000 FIRST=710000``.

Each failing seed is printed as soon as it is found, with the command that replays it. Exit code 1: a seed failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.support.simulation.invariants import violations
from tests.support.simulation.scenario import scenario_of
from tests.support.simulation.world import simulate

#: A process is replaced after so many seeds, so that its memory stays small.
SEEDS_PER_PROCESS = 200
SECONDS_BETWEEN_LINES = 60


def judge(seed: int) -> tuple[int, list[str]]:
    """The seed and what it violated; an exception counts as a violation."""
    try:
        return seed, violations(simulate(scenario_of(seed)))
    except Exception as error:
        return seed, [f"{type(error).__name__}: {error}"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.soak_simulation", description=__doc__)
    parser.add_argument("--first", type=int, help="the first seed (default: a fresh one, from the clock)")
    parser.add_argument("--count", type=int, default=1_000, help="how many seeds (default: 1000)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    arguments = parser.parse_args()
    first = arguments.first if arguments.first is not None else int(time.time())
    return soak(range(first, first + arguments.count), arguments.jobs)


def soak(seeds: range, jobs: int) -> int:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"simulating seeds {seeds[0]} to {seeds[-1]} in {jobs} processes")
    failed: list[int] = []
    began = shown = time.monotonic()
    columns = (
        MofNCompleteColumn(),
        TextColumn("seeds"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    pool = multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=SEEDS_PER_PROCESS)
    with pool, Progress(*Progress.get_default_columns()[:2], *columns, console=console) as progress:
        task = progress.add_task("simulating", total=len(seeds))
        for done, (seed, found) in enumerate(pool.imap_unordered(judge, seeds), start=1):
            progress.update(task, completed=done)
            if found:
                failed.append(seed)
                console.print(f"seed {seed} failed: python -m tests.support.simulation {seed} --trace")
                for sentence in found[:5]:
                    console.print(f"  {sentence}", markup=False)
            # A log file gets a line a minute instead of the bar.
            if not console.is_terminal and time.monotonic() - shown > SECONDS_BETWEEN_LINES:
                shown = time.monotonic()
                console.print(f"{done} of {len(seeds)} seeds, {done / (shown - began):.1f}/s, {len(failed)} failed")
    minutes = (time.monotonic() - began) / 60
    console.print(f"seeds {seeds[0]} to {seeds[-1]} in {minutes:.1f} min on {jobs} processes")
    if failed:
        console.print(f"failing seeds: {' '.join(map(str, sorted(failed)))}")
    console.print(f"{len(seeds) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
