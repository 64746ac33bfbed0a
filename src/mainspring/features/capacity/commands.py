"""``mainspring capacity``: resources and cost of a planned load, with the arithmetic."""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from mainspring.cli.bench import load_benchmark
from mainspring.cli.client.target import Profile, store_settings
from mainspring.cli.options import Config, Store
from mainspring.cli.output import AsJson, console, echo_json, table
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import parse_duration
from mainspring.core.model.base.quantities import DAY_SECONDS, parse_count, parse_peak, parse_per_day, parse_size
from mainspring.features.capacity.costs import Costs, Load, Prices
from mainspring.features.capacity.measured_costs import MEASUREMENTS, costs_of
from mainspring.features.capacity.model import Capacity, capacity_of

_SHIPPED = "mainspring.features.capacity.figures"
#: From this width on, the arithmetic is shown beside its figure.
_ROOMY = 120
_LOAD, _COSTS = "Load", "What it is reckoned with"
T = TypeVar("T", Costs, Prices)


def register(application: typer.Typer) -> None:
    application.command("capacity")(capacity)


def capacity(
    jobs_per_day: Annotated[
        str, typer.Option("--jobs-per-day", help="100M, 250k; or a rate: 1200/s.", rich_help_panel=_LOAD)
    ],
    payload: Annotated[
        str, typer.Option("--payload", help="Arguments of one job: 500B, 2kB.", rich_help_panel=_LOAD)
    ] = "500B",
    peak: Annotated[
        str,
        typer.Option("--peak", help="The busiest second: 10x the mean, or a rate: 10k/s.", rich_help_panel=_LOAD),
    ] = "3x",
    retention: Annotated[
        str, typer.Option("--retention", help="How long what has ended is kept.", rich_help_panel=_LOAD)
    ] = "7d",
    attempts: Annotated[float, typer.Option("--attempts", help="Of one job, on average.", rich_help_panel=_LOAD)] = 1.0,
    takes: Annotated[str, typer.Option("--takes", help="How long one attempt takes.", rich_help_panel=_LOAD)] = "1s",
    work: Annotated[
        str,
        typer.Option("--work", help="How much of a processor your code uses in it.", rich_help_panel=_LOAD),
    ] = "0s",
    scheduled: Annotated[
        float,
        typer.Option("--scheduled", help="How much of it is for later or recurring: 0 to 1.", rich_help_panel=_LOAD),
    ] = 1.0,
    waiting: Annotated[
        str,
        typer.Option("--waiting", help="Jobs that wait for a later time, at once.", rich_help_panel=_LOAD),
    ] = "0",
    slots: Annotated[
        int, typer.Option("--slots", min=1, help="Runs that one worker has under way.", rich_help_panel=_LOAD)
    ] = 100,
    standbys: Annotated[
        int, typer.Option("--standbys", min=0, help="Copies of the database.", rich_help_panel=_LOAD)
    ] = 1,
    prices: Annotated[
        Path | None,
        typer.Option("--prices", help="A TOML file with yours.", show_default=False, rich_help_panel=_COSTS),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure what a job costs on this machine and the store of the settings: half a minute.",
            rich_help_panel=_COSTS,
        ),
    ] = False,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            help="What a job costs by this file, from: mainspring bench --only full,disk --json.",
            show_default=False,
            rich_help_panel=_COSTS,
        ),
    ] = None,
    profile: Profile = None,
    store: Store = None,
    config: Config = None,
    json: AsJson = False,
    scale: Annotated[float, typer.Option("--scale", min=0.0001, max=1, hidden=True)] = 1,
) -> None:
    """Calculate what a load needs: rates, storage, processes, traffic and money, each with its arithmetic.

    The cost of one job is as published, measured here, or read from your own benchmark.

    Examples:

    mainspring capacity --jobs-per-day 100M --payload 500B --peak 10x --retention 30d

    mainspring capacity --jobs-per-day 1200/s --takes 200ms --work 5ms --measure --store postgresql://…

    mainspring capacity --jobs-per-day 1M --prices prices.toml --json
    """
    if measure and measured is not None:
        raise Invalid("--measure", "measures; --measured reads what was", "one of the two")
    if store is not None and not measure:
        raise Invalid("--store", "is for --measure: nothing else looks at a store", "leave it out")
    per_day = parse_per_day(jobs_per_day, "--jobs-per-day")
    if per_day <= 0:
        raise Invalid("--jobs-per-day", "must be more than 0", "for example 100M")
    load = Load(
        jobs_per_day=per_day,
        payload=parse_size(payload, "--payload"),
        peak=parse_peak(peak, "--peak", per_day / DAY_SECONDS),
        retention=parse_duration(retention, "--retention"),
        attempts=attempts,
        takes=parse_duration(takes, "--takes"),
        work=parse_duration(work, "--work"),
        scheduled=scheduled,
        waiting=parse_count(waiting, "--waiting"),
        slots=slots,
        standbys=standbys,
    )
    paid = _shipped("prices.toml", Prices) if prices is None else _read(prices, Prices, "--prices")
    costs = published = _shipped("costs.toml", Costs)
    if measured is not None:
        costs = _measured(measured, published)
    elif measure:
        costs = _measure(store_settings(profile, store, config).store, published, scale)
    found = capacity_of(load, costs, paid)
    if json:
        echo_json(found)
    else:
        show(console(), found)


def show(out: Console, found: Capacity) -> None:
    if out.width >= _ROOMY:
        _beside(out, found)
    else:
        _below(out, found)
    out.print(Text(f"Costs of a job: {found.measured}."))
    out.print(Text(f"Prices: {found.prices}."))
    for note in found.notes:
        out.print(Text(f"Note: {note}."))


def _beside(out: Console, found: Capacity) -> None:
    """Print one row per figure, with its arithmetic."""
    shown = table("FIGURE", "VALUE", "HOW", right=("VALUE",))
    for section in found.sections:
        shown.add_row(Text(section.title, "bold"))
        for figure in section.figures:
            shown.add_row(figure.label, Text(figure.shown, "bold"), figure.how)
        shown.add_row()
    out.print(shown)


def _below(out: Console, found: Capacity) -> None:
    """Print the arithmetic below each figure, for narrow terminals."""
    room = max(len(figure.label) for section in found.sections for figure in section.figures) + 2
    for section in found.sections:
        out.print(Text(section.title, "bold"))
        for figure in section.figures:
            out.print(Text(f"  {figure.label:<{room}}").append(figure.shown, "bold"))
            out.print(Padding(Text(figure.how, "dim"), (0, 0, 0, 6)))
        out.print()


def _measure(store: str, published: Costs, scale: float) -> Costs:
    command = load_benchmark("command")
    if store.startswith("["):
        raise Invalid("--measure", "measures one server, and the store has several", "--store with one of them")
    sizes = command.sizes_of(quick=True, rounds=None, seconds=None, soak=None, workers=None, scale=scale)
    return costs_of(command.figures_of(store, sizes, MEASUREMENTS), published, "--measure")


def _measured(path: Path, published: Costs) -> Costs:
    return costs_of(_bytes(path, "--measured"), published, "--measured")


def _shipped(name: str, kind: type[T]) -> T:
    return msgspec.convert(tomllib.loads((resources.files(_SHIPPED) / name).read_text("utf-8")), type=kind)


def _read(path: Path, kind: type[T], field: str) -> T:
    try:
        return msgspec.convert(tomllib.loads(_bytes(path, field).decode("utf-8")), type=kind)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise Invalid(field, f"{path}: {error}", "the keys are in docs/operate/capacity.md") from error


def _bytes(path: Path, field: str) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise Invalid(field, f"{path} cannot be read: {error.strerror}") from error
