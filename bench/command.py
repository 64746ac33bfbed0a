"""What ``mainspring bench`` does: says what is going on, prints the tables, or one JSON object."""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence

import msgspec
from rich.console import Console

from bench import machine, report, suite
from bench.figures import Figures, minutes
from bench.run import POSTGRES, SQLITE
from bench.run import run as run_on
from bench.sites.local_broker import address_of
from bench.sizes import QUICK, Sizes, scaled
from mainspring.config.sections.addresses import hide_secrets
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, parse_duration
from mainspring.core.model.cluster.coordination import STORE

STORES = (SQLITE, POSTGRES)
_SHORTEST_SOAK = 20
#: What an address says of how an broker is used. What else is there can be a password.
_SHOWN = ("kind", "topics", "partitions")


def run(
    name: str, stores: Sequence[str], sizes: Sizes, only: Sequence[str], *, as_json: bool, brokers: Sequence[str] = ()
) -> int:
    """Measure a suite, on each store with each of the brokers. The exit status: 0, or 1 when something that was
    measured went wrong."""
    chosen = suite.choose(name, only, quick=sizes.quick)
    # With --json nothing but the object goes to stdout.
    console = Console(stderr=as_json, highlight=False)
    facts = machine.facts()
    console.print(machine.describe(facts))
    expected = sum(suite.estimate(chosen, sizes, embedded=not store.startswith(POSTGRES)) for store in stores)
    shown = " and ".join(map(hide_secrets, stores))
    console.print(f"{', '.join(item.name for item in chosen)} on {shown}: about {minutes(expected)}", markup=False)
    results: dict[str, Figures] = {}
    for store, broker in [(store, broker) for store in stores for broker in brokers or (STORE,)]:
        try:
            with console.status("") as status, address_of(broker) as address:
                sized = msgspec.structs.replace(sizes, dispatch=address)
                figures = asyncio.run(run_on(store, sized, chosen, _teller(console, status.update)))
        except asyncio.CancelledError:
            return 128 + signal.SIGTERM
        figures["machine"] = facts
        if broker != STORE:
            figures["store"] = f"{figures['store']} fed by {broker_name(broker)}"
        results[str(figures["store"])] = figures
        console.print(_durability(figures))
        console.print(report.table(figures))
    if len(brokers) > 1:
        console.print(report.side_by_side(results))
    if as_json:
        whole: object = next(iter(results.values())) if len(results) == 1 else results
        sys.stdout.write(msgspec.json.encode(whole).decode() + "\n")
    return 1 if any(figures["failed"] for figures in results.values()) else 0


def figures_of(store: str, sizes: Sizes, only: Sequence[str]) -> Figures:
    """Return the results of a few measurements. Progress goes to stderr."""
    chosen = suite.choose("engine", only, quick=sizes.quick)
    console = Console(stderr=True, highlight=False)
    embedded = not store.startswith((POSTGRES, "postgresql://", "postgres://"))
    console.print(f"measuring: about {minutes(suite.estimate(chosen, sizes, embedded=embedded))}")
    with console.status("") as status:
        figures = asyncio.run(run_on(store, sizes, chosen, _teller(console, status.update)))
    failed = figures["failed"]
    if isinstance(failed, dict) and failed:
        raise Invalid("--measure", "; ".join(f"{name} failed: {why}" for name, why in failed.items()))
    return {**figures, "machine": machine.facts()}


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


def broker_name(url: str) -> str:
    """Which one, and how it is used, without where it is. Of its options those that are no secret."""
    scheme, _, rest = url.partition("://")
    options = rest.partition("?")[2].split("&")
    return " ".join([scheme, *(option for option in options if option.partition("=")[0] in _SHOWN)])


def _durability(figures: Figures) -> str:
    facts = figures["server"]
    assert isinstance(facts, dict)
    return f"{figures['store']}: " + ", ".join(f"{name} {value}" for name, value in facts.items())
