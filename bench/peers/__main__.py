"""Ours, theirs, ours, theirs: rounds are interleaved, and what counts is the ratio."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable

import msgspec
from rich.console import Console
from rich.table import Table

from bench import machine
from bench.engine import drain, herd, idle, submit
from bench.figures import Figures, median_of_rounds, number
from bench.measurement import Bench, Measure
from bench.peers import pgqueuer_figures as theirs
from bench.run import make_factory
from bench.sizes import QUICK, Sizes, scaled

Theirs = Callable[[str, Sizes, Callable[[str], None]], Awaitable[Figures]]

PAIRS: dict[str, tuple[Measure, Theirs]] = {
    "drain": (drain.measure, theirs.drain),
    "submit": (submit.measure, theirs.submit),
    "idle": (idle.measure, theirs.idle),
    "herd": (herd.measure, theirs.herd),
}
#: Key, what it is, whether more is better.
ROWS = (
    ("drain_jobs_per_s", "drain, jobs/s", True),
    ("submit_single_jobs_per_s", "submit one by one, jobs/s", True),
    ("submit_batch_jobs_per_s", "submit in batches, jobs/s", True),
    ("idle_latency_p50_ms", "idle latency p50, ms", False),
    ("idle_latency_p99_ms", "idle latency p99, ms", False),
    ("herd_5000_lateness_p50_ms", "5,000 due at once, p50 ms late", False),
    ("herd_5000_lateness_p99_ms", "5,000 due at once, p99 ms late", False),
)


async def run(sizes: Sizes, only: list[str], tell: Callable[[str], None]) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {"mainspring": [], "pgqueuer": []}
    async with make_factory("postgres", tell) as place:
        bench = Bench(place, sizes, tell)
        dsn: str = place.dsn  # type: ignore[attr-defined]
        try:
            for round_number in range(sizes.rounds):
                bench.progress = f"round {round_number + 1} of {sizes.rounds}: "
                ours_now: Figures = {}
                theirs_now: Figures = {}
                for name, (measure_ours, measure_theirs) in PAIRS.items():
                    if name in only:
                        ours_now |= await measure_ours(bench)
                        # Our processes must not run while theirs are measured.
                        await bench.close()
                        theirs_now |= await measure_theirs(dsn, sizes, bench.say)
                found["mainspring"].append(ours_now)
                found["pgqueuer"].append(theirs_now)
        finally:
            await bench.close()
    return found


def compare(found: dict[str, list[Figures]]) -> dict[str, dict[str, float]]:
    """Medians, and the median of the ratios of rounds: how many times better we are."""
    compared: dict[str, dict[str, float]] = {}
    ours, peer = median_of_rounds(found["mainspring"]), median_of_rounds(found["pgqueuer"])
    for key, _, more in ROWS:
        ratios = []
        for mine, other in zip(found["mainspring"], found["pgqueuer"], strict=True):
            a, b = mine.get(key), other.get(key)
            if isinstance(a, int | float) and isinstance(b, int | float):
                ratios.append({"ratio": a / b if more else b / a})
        if ratios:
            middle = median_of_rounds([dict(ratio) for ratio in ratios])["ratio"]
            a, b = ours[key], peer[key]
            assert isinstance(a, int | float)
            assert isinstance(b, int | float)
            assert isinstance(middle, int | float)
            compared[key] = {"mainspring": a, "pgqueuer": b, "times_better": round(middle, 2)}
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller numbers")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--rounds", type=int, help="take medians of so many rounds")
    parser.add_argument("--only", default=",".join(PAIRS), help="some of drain,submit,idle,herd")
    parser.add_argument("--workers", type=int, help="our worker processes")
    parser.add_argument("--scale", type=float, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = scaled(QUICK if options.quick else Sizes(), options.scale)
    sizes = msgspec.structs.replace(
        sizes, rounds=options.rounds or sizes.rounds, drain_workers=options.workers or sizes.drain_workers
    )
    console = Console(stderr=options.json, highlight=False)
    facts = machine.facts()
    console.print(machine.describe(facts))
    found = asyncio.run(run(sizes, options.only.split(","), lambda words: console.print(words, markup=False)))
    compared = compare(found)
    table = Table(title="the same server, rounds in turn", title_justify="left")
    for heading in ("figure", "mainspring", "pgqueuer", "times better"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for key, label, _ in ROWS:
        if key in compared:
            row = compared[key]
            table.add_row(label, number(row["mainspring"]), number(row["pgqueuer"]), f"{row['times_better']:.2f} ×")
    console.print(table)
    if options.json:
        sys.stdout.write(msgspec.json.encode({**compared, "rounds": found, "machine": facts}).decode() + "\n")


if __name__ == "__main__":
    main()
