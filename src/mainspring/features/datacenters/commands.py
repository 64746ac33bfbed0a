"""``mainspring datacenters``: where processes are, and how each place is doing."""

import re

import msgspec
import typer
from rich.text import Text

from mainspring.cli.client.target import Client, command, read
from mainspring.cli.output import Output, span
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MILLISECOND
from mainspring.core.model.cluster.labels import AND_THEN

#: Last in an order of preference it is how long to wait, and not a name.
_TIME = re.compile(r"([0-9]+(ms|[smhd]))+")


def register(application: typer.Typer) -> None:
    command(application, "datacenters")(list_datacenters)


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


async def list_datacenters(api: Client, out: Output) -> None:
    """List data centres: who is there, what waits for them and how long, and who stands in for whom.

    Example: mainspring datacenters
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


def datacenters_of(text: str) -> object:
    """``us,eu``, ``all``, ``any``, or an order of preference, ``us>eu>30s``, as the API takes it."""
    if text in ("all", "any"):
        return text
    if AND_THEN not in text:
        return [name.strip() for name in text.split(",") if name.strip()]
    order = [name.strip() for name in text.split(AND_THEN)]
    if not all(order):
        raise Invalid("--datacenters", f"{text!r} is no order", "for example us>eu>30s")
    after = order.pop() if _TIME.fullmatch(order[-1]) else None
    return {"prefer": order} | ({} if after is None else {"failoverAfter": after})


def datacenters_shown(given: msgspec.Raw | msgspec.UnsetType) -> str:
    if given is msgspec.UNSET:
        return ""
    found = msgspec.json.decode(given)
    if isinstance(found, dict):
        return AND_THEN.join([*found["prefer"], found.get("failoverAfter", "30s")])
    return found if isinstance(found, str) else ", ".join(found)
