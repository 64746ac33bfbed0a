"""``mainspring bench``: runs the benchmark of the checkout that this program comes from."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import typer

from mainspring.core.model.base.errors import Invalid

#: The checkout, if the program was installed from one with ``--editable``.
_CHECKOUT = Path(__file__).parents[3]


def register(application: typer.Typer) -> None:
    application.command(
        "bench",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(bench)


def bench(context: typer.Context) -> None:
    """Measure throughput, latency, lateness and cost. Needs a checkout; see docs/design/benchmark.md.

    Example: mainspring bench --help

    Example: mainspring bench --store postgres --only full,drain

    Example: mainspring bench api --store postgres

    Example: mainspring bench --store postgres --only full,idle --dispatch store,redis,rabbitmq,kafka
    """
    main = load_benchmark("__main__")
    raise typer.Exit(main.application(context.args, prog_name="mainspring bench", standalone_mode=False) or 0)


def load_benchmark(module: str, checkout: Path = _CHECKOUT) -> ModuleType:
    """Import a module of the checkout's ``bench`` package, which wheels do not contain."""
    if not (checkout / "bench/__main__.py").exists():
        raise Invalid(
            "bench", "the benchmark is not part of the installed package", "clone the repository and run: make bench"
        )
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    return importlib.import_module(f"bench.{module}")
