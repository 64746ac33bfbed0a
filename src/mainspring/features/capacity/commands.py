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
from mainspring.cli.client.command import Profile
from mainspring.cli.client.target import store_settings
from mainspring.cli.options import Config, Store
from mainspring.cli.output import AsJson, build_table, echo_json, make_console
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import parse_duration
from mainspring.core.model.base.quantities import DAY_SECONDS, parse_count, parse_peak, parse_per_day, parse_size
from mainspring.features.capacity.costs import Costs, Load, Prices
from mainspring.features.capacity.measured_costs import MEASUREMENTS, build_costs
from mainspring.features.capacity.model import Capacity, compute_capacity

_PACKAGED = "mainspring.features.capacity.figures"
#: From this width on, the arithmetic is shown beside its figure.
_WIDE_TERMINAL = 120
_LOAD, _COSTS = "Load", "Assumptions"
T = TypeVar("T", Costs, Prices)


def register(application: typer.Typer) -> None:
    application.command("capacity")(capacity)


def capacity(
    jobs_per_day: Annotated[
        str,
        typer.Option(
            "--jobs-per-day",
            help="Jobs per day, such as 100M or 250k, or a rate, such as 1200/s.",
            rich_help_panel=_LOAD,
        ),
    ],
    payload: Annotated[
        str, typer.Option("--payload", help="The payload of one job, such as 500B or 2kB.", rich_help_panel=_LOAD)
    ] = "500B",
    peak: Annotated[
        str,
        typer.Option("--peak", help="The peak rate, such as 10x (the mean) or 10k/s.", rich_help_panel=_LOAD),
    ] = "3x",
    retention: Annotated[
        str, typer.Option("--retention", help="How long ended runs are kept.", rich_help_panel=_LOAD)
    ] = "7d",
    attempts: Annotated[
        float, typer.Option("--attempts", help="The average number of attempts per job.", rich_help_panel=_LOAD)
    ] = 1.0,
    takes: Annotated[str, typer.Option("--takes", help="The duration of one attempt.", rich_help_panel=_LOAD)] = "1s",
    work: Annotated[
        str,
        typer.Option("--work", help="The CPU time that your code uses in one attempt.", rich_help_panel=_LOAD),
    ] = "0s",
    scheduled: Annotated[
        float,
        typer.Option(
            "--scheduled", help="The share of delayed and recurring jobs, from 0 to 1.", rich_help_panel=_LOAD
        ),
    ] = 1.0,
    waiting: Annotated[
        str,
        typer.Option("--waiting", help="The number of jobs that wait for a later time.", rich_help_panel=_LOAD),
    ] = "0",
    slots: Annotated[int, typer.Option("--slots", min=1, help="The slots of one worker.", rich_help_panel=_LOAD)] = 100,
    standbys: Annotated[
        int, typer.Option("--standbys", min=0, help="The number of standbys of the database.", rich_help_panel=_LOAD)
    ] = 1,
    prices: Annotated[
        Path | None,
        typer.Option("--prices", help="A TOML file with your prices.", show_default=False, rich_help_panel=_COSTS),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure the cost of a job on this machine and the configured store (30 s).",
            rich_help_panel=_COSTS,
        ),
    ] = False,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            help="Use the costs in this file, from: mainspring bench --only full,disk --json.",
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
        raise Invalid("--measure", "contradicts --measured", "use one of them")
    if store is not None and not measure:
        raise Invalid("--store", "requires --measure", "omit it")
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
    paid = _read_packaged("prices.toml", Prices) if prices is None else _read_file(prices, Prices, "--prices")
    costs = published = _read_packaged("costs.toml", Costs)
    if measured is not None:
        costs = _read_measured(measured, published)
    elif measure:
        costs = _run_benchmark(store_settings(profile, store, config).store, published, scale)
    found = compute_capacity(load, costs, paid)
    if json:
        echo_json(found)
    else:
        print_capacity(make_console(), found)


def print_capacity(out: Console, found: Capacity) -> None:
    if out.width >= _WIDE_TERMINAL:
        _print_table(out, found)
    else:
        _print_list(out, found)
    out.print(Text(f"Costs of a job: {found.measured}."))
    out.print(Text(f"Prices: {found.prices}."))
    for note in found.notes:
        out.print(Text(f"Note: {note}."))


def _print_table(out: Console, found: Capacity) -> None:
    """Print one row per figure, with its arithmetic."""
    shown = build_table("FIGURE", "VALUE", "HOW", right=("VALUE",))
    for section in found.sections:
        shown.add_row(Text(section.title, "bold"))
        for figure in section.figures:
            shown.add_row(figure.label, Text(figure.shown, "bold"), figure.how)
        shown.add_row()
    out.print(shown)


def _print_list(out: Console, found: Capacity) -> None:
    """Print the arithmetic below each figure, for narrow terminals."""
    room = max(len(figure.label) for section in found.sections for figure in section.figures) + 2
    for section in found.sections:
        out.print(Text(section.title, "bold"))
        for figure in section.figures:
            out.print(Text(f"  {figure.label:<{room}}").append(figure.shown, "bold"))
            out.print(Padding(Text(figure.how, "dim"), (0, 0, 0, 6)))
        out.print()


def _run_benchmark(store: str, published: Costs, scale: float) -> Costs:
    command = load_benchmark("command")
    if store.startswith("["):
        raise Invalid("--measure", "measures one server, and the store is sharded", "--store with one of them")
    sizes = command.sizes_of(quick=True, rounds=None, seconds=None, soak=None, workers=None, scale=scale)
    return build_costs(command.figures_of(store, sizes, MEASUREMENTS), published, "--measure")


def _read_measured(path: Path, published: Costs) -> Costs:
    return build_costs(_parse_bytes(path, "--measured"), published, "--measured")


def _read_packaged(name: str, kind: type[T]) -> T:
    return msgspec.convert(tomllib.loads((resources.files(_PACKAGED) / name).read_text("utf-8")), type=kind)


def _read_file(path: Path, kind: type[T], field: str) -> T:
    try:
        return msgspec.convert(tomllib.loads(_parse_bytes(path, field).decode("utf-8")), type=kind)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise Invalid(field, f"{path}: {error}", "the keys are in docs/operate/capacity.md") from error


def _parse_bytes(path: Path, field: str) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise Invalid(field, f"{path} cannot be read: {error.strerror}") from error
