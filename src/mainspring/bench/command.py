"""What ``mainspring bench`` does: says what is going on, prints the tables, or one JSON object."""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence

import msgspec
from rich.console import Console

from mainspring.bench import machine, report, suite
from mainspring.bench.figures import Figures, minutes
from mainspring.bench.run import POSTGRES, SQLITE
from mainspring.bench.run import run as run_on
from mainspring.bench.sizes import QUICK, Sizes, scaled
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import SECOND, parse_duration
from mainspring.settings import without_secrets

STORES = (SQLITE, POSTGRES)
_SHORTEST_SOAK = 20


def run(name: str, stores: Sequence[str], sizes: Sizes, only: Sequence[str], *, as_json: bool) -> int:
    """Measure a suite. The exit status: 0, or 1 when something that was measured went wrong."""
    chosen = suite.choose(name, only, quick=sizes.quick)
    # With --json nothing but the object goes to stdout.
    console = Console(stderr=as_json, highlight=False)
    facts = machine.facts()
    console.print(machine.describe(facts))
    expected = sum(suite.estimate(chosen, sizes, embedded=not store.startswith(POSTGRES)) for store in stores)
    shown = " and ".join(map(without_secrets, stores))
    console.print(f"{', '.join(item.name for item in chosen)} on {shown}: about {minutes(expected)}", markup=False)
    results: dict[str, Figures] = {}
    for store in stores:
        try:
            with console.status("") as status:
                figures = asyncio.run(run_on(store, sizes, chosen, _teller(console, status.update)))
        except asyncio.CancelledError:
            return 128 + signal.SIGTERM
        figures["machine"] = facts
        results[str(figures["store"])] = figures
        console.print(_durability(figures))
        console.print(report.table(figures))
    if as_json:
        whole: object = next(iter(results.values())) if len(results) == 1 else results
        sys.stdout.write(msgspec.json.encode(whole).decode() + "\n")
    return 1 if any(figures["failed"] for figures in results.values()) else 0


def sizes_of(
    *, quick: bool, rounds: int | None, seconds: float | None, soak: str | None, workers: int | None, scale: float
) -> Sizes:
    """How much is measured, by what was asked for."""
    changes: dict[str, object] = {
        "rounds": rounds,
        "seconds": seconds,
        "api_seconds": seconds,
        "workers": workers,
        "drain_workers": workers,
    }
    if soak is not None:
        changes["soak_seconds"] = parse_duration(soak, "--soak") / SECOND
        if parse_duration(soak, "--soak") < _SHORTEST_SOAK * SECOND:
            raise Invalid("--soak", f"{soak} is too short to say anything", "for example 30m")
    sizes = scaled(QUICK if quick else Sizes(), scale)
    return msgspec.structs.replace(sizes, **{name: value for name, value in changes.items() if value is not None})


def _teller(console: Console, update: Callable[[str], None]) -> Callable[[str], None]:
    """A line that changes on a terminal, a line each elsewhere."""
    return update if console.is_terminal else lambda words: console.print(words, markup=False)


def _durability(figures: Figures) -> str:
    facts = figures["server"]
    assert isinstance(facts, dict)
    return f"{figures['store']}: " + ", ".join(f"{name} {value}" for name, value in facts.items())
