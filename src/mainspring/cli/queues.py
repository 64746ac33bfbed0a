"""``mainspring queues``: the lanes that workers serve."""

from typing import Annotated

import msgspec
import typer
from rich.text import Text

from mainspring.cli.each import each
from mainspring.cli.fields import Yes
from mainspring.cli.output import Output, confirm, span
from mainspring.cli.target import Client, Raw, command, read, segment
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import MILLISECOND

group = typer.Typer(name="queues", help="See how queues are doing; pause and resume them.", no_args_is_help=True)

Names = Annotated[list[str] | None, typer.Argument(help="Queues.", metavar="[QUEUE…]")]
All = Annotated[bool, typer.Option("--all", help="Everything, of all tenants: for administrators of all.")]


def register(application: typer.Typer) -> None:
    application.add_typer(group)


class Queue(msgspec.Struct, rename="camel"):
    name: str
    queued: int
    running: int
    workers: int
    lag_ms: float
    rate_per_s: float
    paused: bool
    pause_reason: str | None = None

    @property
    def lag(self) -> str:
        return span(round(self.lag_ms * MILLISECOND)) if self.queued else ""

    @property
    def state(self) -> Text:
        if not self.paused:
            return Text("") if self.workers else Text("no worker", "yellow" if self.queued else "")
        return Text(f"paused: {self.pause_reason}" if self.pause_reason else "paused", "yellow")


class Queues(msgspec.Struct):
    items: list[Queue]


@command(group, "list")
async def list_queues(api: Client, out: Output) -> None:
    """List queues: what waits, how long the oldest has been due, what runs, and how fast it goes.

    Example: mainspring queues list
    """
    answer = await api.ask("GET", "/v1/queues", query={"tenant": api.tenant})
    queues = read(answer, Queues).items

    def show() -> None:
        numbers = ("QUEUED", "LAG", "RUNNING", "ENDED/S", "WORKERS")
        out.rows(
            ("QUEUE", *numbers, "STATE"),
            [
                (
                    queue.name,
                    f"{queue.queued:,}",
                    queue.lag,
                    f"{queue.running:,}",
                    f"{queue.rate_per_s:,.1f}",
                    str(queue.workers),
                    queue.state,
                )
                for queue in queues
            ],
            right=numbers,
        )

    out.tell(answer, [queue.name for queue in queues], show)


@command(group, "pause")
async def pause(
    api: Client,
    out: Output,
    names: Names = None,
    everything: All = False,
    why: Annotated[str, typer.Option("--why", help="For those who wonder.", show_default=False)] = "",
    yes: Yes = False,
) -> None:
    """Pause queues: nothing more of them is started; what runs goes on, what comes waits.

    Examples:

    mainspring queues pause mail --why "the provider is down"

    mainspring queues pause --all --yes
    """
    if _is_all(api, names, everything):
        confirm("pause everything, of all tenants", yes)
        answer = await api.ask("POST", "/v1/pause", body={"why": why}, repeatable=True)
        out.tell(answer, ["*"], lambda: out.print("everything is paused; to go on: mainspring queues resume --all"))
        return

    async def one(name: str) -> tuple[Raw, str, str]:
        body = {"why": why, "tenant": api.tenant}
        answer = await api.ask("POST", f"/v1/queues/{segment(name)}/pause", body=body, repeatable=True)
        return answer, name, f"queue {name} is paused{_whose(api)}"

    await each(out, names or [], one)


@command(group, "resume")
async def resume(api: Client, out: Output, names: Names = None, everything: All = False) -> None:
    """Resume queues; or with --all lift the pause of everything, and leave those paused by themselves.

    Example: mainspring queues resume mail
    """
    if _is_all(api, names, everything):
        answer = await api.ask("POST", "/v1/resume", repeatable=True)
        out.tell(answer, ["*"], lambda: out.print("the pause of everything is lifted"))
        return

    async def one(name: str) -> tuple[Raw, str, str]:
        body = {"tenant": api.tenant}
        answer = await api.ask("POST", f"/v1/queues/{segment(name)}/resume", body=body, repeatable=True)
        return answer, name, f"queue {name} goes on{_whose(api)}"

    await each(out, names or [], one)


def _is_all(api: Client, names: list[str] | None, everything: bool) -> bool:
    if bool(names) == everything:
        raise Invalid("queue", "nothing says which are meant" if not names else "contradicts --all", "names, or --all")
    if everything and api.tenant is not None:
        raise Invalid("--all", "is for all tenants", "leave out --tenant")
    return everything


def _whose(api: Client) -> str:
    return "" if api.tenant is None else f" for tenant {api.tenant}"
