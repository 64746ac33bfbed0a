"""``mainspring datacenters``: list data centers with their processes, load and failover state."""

import typer
from rich.text import Text

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer
from mainspring.cli.output import Output, format_span
from mainspring.core.model.base.instant import MILLISECOND
from mainspring.http.schemas.datacenters import DatacentersOut

group = typer.Typer(name="datacenters", help="List data centers and their load.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.add_typer(group)


@command(group, "list")
async def list_datacenters(api: Client, out: Output) -> None:
    """List data centers: processes, waiting runs, lag, and which data center currently serves for another.

    Example: mainspring datacenters list
    """
    answer = await api.ask("GET", "/v1/datacenters")
    found = decode_answer(answer, DatacentersOut)

    def show() -> None:
        out.rows(
            ("DATACENTER", "HEALTH", "WORKERS", "SCHEDULERS", "QUEUED", "RUNNING", "LAG"),
            [
                (
                    data_center.name,
                    Text(data_center.health.replace("-", " "), "" if data_center.health == "ok" else "yellow"),
                    f"{data_center.workers}" + (f" (+{data_center.draining} draining)" if data_center.draining else ""),
                    str(data_center.schedulers),
                    str(data_center.queued),
                    str(data_center.running),
                    format_span(round(data_center.lag_ms * MILLISECOND)) if data_center.queued else "",
                )
                for data_center in found.items
            ],
            empty="no data centers; to assign a process to one: --datacenter NAME",
            right=("WORKERS", "SCHEDULERS", "QUEUED", "RUNNING", "LAG"),
        )
        for order in found.orders:
            out.report(f"{order.order}: served by {order.serving}" + (f" ({order.reason})" if order.reason else ""))

    out.render(answer, [data_center.name for data_center in found.items], show)
