"""``mainspring datacenters``: list data centers with their processes, load and failover state."""

import msgspec
import typer
from rich.text import Text

from mainspring.cli.client.target import Client, command, read
from mainspring.cli.output import Output, span
from mainspring.core.model.base.instant import MILLISECOND

group = typer.Typer(name="datacenters", help="See how each data center is doing.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.add_typer(group)


class Datacenter(msgspec.Struct, rename="camel"):
    name: str
    health: str
    workers: int
    draining: int
    schedulers: int
    queued: int
    running: int
    lag_ms: float
    last_worker_at: str | None = None


class Order(msgspec.Struct):
    order: str
    serving: str
    reason: str | None = None


class Datacenters(msgspec.Struct):
    items: list[Datacenter]
    orders: list[Order]


@command(group, "list")
async def list_datacenters(api: Client, out: Output) -> None:
    """List data centers: processes, waiting runs, lag, and which data center currently serves for another.

    Example: mainspring datacenters list
    """
    answer = await api.ask("GET", "/v1/datacenters")
    found = read(answer, Datacenters)

    def show() -> None:
        out.rows(
            ("DATACENTER", "HEALTH", "WORKERS", "SCHEDULERS", "QUEUED", "RUNNING", "LAG"),
            [
                (
                    place.name,
                    Text(place.health.replace("-", " "), "" if place.health == "ok" else "yellow"),
                    f"{place.workers}" + (f" (+{place.draining} leaving)" if place.draining else ""),
                    str(place.schedulers),
                    str(place.queued),
                    str(place.running),
                    span(round(place.lag_ms * MILLISECOND)) if place.queued else "",
                )
                for place in found.items
            ],
            right=("WORKERS", "SCHEDULERS", "QUEUED", "RUNNING", "LAG"),
        )
        for order in found.orders:
            out.say(f"{order.order}: {order.serving} serves it" + (f" ({order.reason})" if order.reason else ""))

    out.tell(answer, [place.name for place in found.items], show)
