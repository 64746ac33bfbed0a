"""``mainspring schedulers``: the processes that fire schedules and queue due runs."""

import typer

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer
from mainspring.cli.output import Output, format_span
from mainspring.core.model.base.instant import MILLISECOND
from mainspring.http.schemas.workers import Schedulers

group = typer.Typer(name="schedulers", help="List live schedulers.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.add_typer(group)


@command(group, "list")
async def list_schedulers(api: Client, out: Output) -> None:
    """List the live schedulers, and how many shards each has. `mainspring scheduler` starts one.

    Example: mainspring schedulers list
    """
    answer = await api.ask("GET", "/v1/schedulers")
    found = decode_answer(answer, Schedulers)

    def show() -> None:
        out.rows(
            ("SCHEDULER", "NAME", "SHARDS", "STARTED", "HEARTBEAT", "VERSION", "DATACENTER"),
            [
                (
                    one.scheduler_id,
                    one.name,
                    f"{one.shards:,}",
                    out.time(one.started_at),
                    out.time(one.last_heartbeat_at),
                    one.version,
                    one.datacenter,
                )
                for one in found.items
            ],
            right=("SHARDS",),
        )
        if not found.items:
            out.report("no scheduler is alive: nothing becomes due; mainspring scheduler starts one")
        elif found.lag_ms:
            lag = format_span(round(found.lag_ms * MILLISECOND))
            out.report(f"the oldest run that is not staged yet has been due for {lag}")

    out.render(answer, [one.scheduler_id for one in found.items], show)
