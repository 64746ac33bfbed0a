"""``mainspring queues``: see, pause, resume and limit the queues that workers serve."""

from typing import Annotated

import msgspec
import typer
from rich.text import Text

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, Raw, decode_answer, quote_segment
from mainspring.cli.each import act_on_each
from mainspring.cli.fields import Yes
from mainspring.cli.output import Output, confirm, format_span, print_details
from mainspring.cli.pausing import Until, Why, build_pause, format_until
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MILLISECOND
from mainspring.http.schemas.common import Page
from mainspring.http.schemas.queues import QueueOut

group = typer.Typer(name="queues", help="List, pause, resume and limit queues.", no_args_is_help=True)

Names = Annotated[list[str] | None, typer.Argument(help="Queues.", metavar="[QUEUE…]")]
All = Annotated[
    bool, typer.Option("--all", help="All queues of all tenants. Requires an administrator of all tenants.")
]


def register(application: typer.Typer) -> None:
    application.add_typer(group)


def format_lag(queue: QueueOut) -> str:
    return format_span(round(queue.lag_ms * MILLISECOND)) if queue.queued else ""


def format_state(queue: QueueOut) -> Text:
    if not queue.paused and queue.workers and queue.stranded:
        waiting = ", ".join(f"{runs:,} for {name}" for name, runs in queue.stranded.items())
        return Text(f"{waiting} (no workers)", "yellow")
    if not queue.paused:
        return Text("") if queue.workers else Text("no worker", "yellow" if queue.queued else "")
    until = "" if queue.resume_at is None else f" until {queue.resume_at}"
    return Text(f"paused{until}" + (f": {queue.pause_reason}" if queue.pause_reason else ""), "yellow")


@command(group, "list")
async def list_queues(api: Client, out: Output) -> None:
    """List queues: queued runs, age of the oldest due run, active runs, and throughput.

    Example: mainspring queues list
    """
    answer = await api.ask("GET", "/v1/queues", query={"tenant": api.tenant})
    queues = decode_answer(answer, Page[QueueOut]).items

    def show() -> None:
        numbers = ("QUEUED", "LAG", "RUNNING", "ENDED/S", "WORKERS")
        out.rows(
            ("QUEUE", *numbers, "STATE"),
            [
                (
                    queue.name,
                    f"{queue.queued:,}",
                    format_lag(queue),
                    f"{queue.running:,}",
                    f"{queue.rate_per_s:,.1f}",
                    str(queue.workers),
                    format_state(queue),
                )
                for queue in queues
            ],
            right=numbers,
            empty="no queues: no worker is alive, and no run is queued",
        )

    out.render(answer, [queue.name for queue in queues], show)


class Policy(msgspec.Struct, rename="camel"):
    name: str
    concurrency: int | None = None
    retries: str | None = None
    fair: bool = False
    shares: dict[str, int] = {}


@command(group, "show")
async def show_queue(
    api: Client, out: Output, name: Annotated[str, typer.Argument(help="The name of the queue.", metavar="QUEUE")]
) -> None:
    """Show a queue: its policy, its runs and its workers.

    Example: mainspring queues show mail
    """
    answer = await api.ask("GET", f"/v1/queues/{quote_segment(name)}")
    policy = decode_answer(answer, Policy)
    if not out.for_people:
        out.render(answer, [name], lambda: None)
        return
    listed = decode_answer(await api.ask("GET", "/v1/queues", query={"tenant": api.tenant}), Page[QueueOut]).items
    _show_policy(out, policy, next((queue for queue in listed if queue.name == name), None))


@command(group, "update")
async def update_queue(
    api: Client,
    out: Output,
    name: Annotated[str, typer.Argument(help="The name of the queue.", metavar="QUEUE")],
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", help="The maximum number of active runs, over all workers.", show_default=False),
    ] = None,
    retries: Annotated[
        str | None,
        typer.Option("--retries", help="The maximum rate of retries, such as 10/s.", show_default=False),
    ] = None,
    fair: Annotated[
        bool | None,
        typer.Option(
            "--fair/--by-priority", help="Order runs fairly between tenants, or by priority.", show_default=False
        ),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            "--share",
            help="The share of a tenant, such as acme=3; others have 1. Repeatable.",
            metavar="TENANT=TURNS",
            show_default=False,
        ),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Reset what you do not set: no limits, order by priority.")
    ] = False,
    why: Annotated[str, typer.Option("--why", help="The reason, kept in the audit log.", show_default=False)] = "",
) -> None:
    """Change the policy of a queue; options that you omit keep their values.

    Examples:

    mainspring queues update mail --concurrency 50 --retries 10/s

    mainspring queues update reports --fair --share acme=3

    mainspring queues update mail --reset
    """
    given = {"concurrency": concurrency, "retries": retries, "fair": fair}
    changes = {field: value for field, value in given.items() if value is not None}
    if not (changes or share or reset):
        raise Invalid("--concurrency", "no change given", "for example --concurrency 50, or --reset")
    path = f"/v1/queues/{quote_segment(name)}"
    current = Policy(name) if reset else decode_answer(await api.ask("GET", path), Policy)
    kept = {"concurrency": current.concurrency, "retries": current.retries, "fair": current.fair}
    body = {**kept, **changes, "shares": {**current.shares, **_parse_shares(share or [])}, "why": why}
    answer = await api.ask("PUT", path, body=body, repeatable=True)
    out.render(answer, [name], lambda: _show_policy(out, decode_answer(answer, Policy)))


def _parse_shares(given: list[str]) -> dict[str, int]:
    shares: dict[str, int] = {}
    for text in given:
        tenant, _, turns = text.rpartition("=")
        if not tenant or not turns.isascii() or not turns.isdigit() or len(turns) > 9:
            raise Invalid("--share", f"{text[:40]!r} is not a tenant with its share", "for example acme=3")
        shares[tenant] = int(turns)
    return shares


def _show_policy(out: Output, policy: Policy, queue: QueueOut | None = None) -> None:
    activity: list[tuple[str, object]] = []
    if queue is not None:
        lag = format_lag(queue)
        activity = [
            ("state", format_state(queue)),
            ("queued", f"{queue.queued:,}" + (f", the oldest for {lag}" if lag else "")),
            ("running", f"{queue.running:,}"),
            ("completed", f"{queue.rate_per_s:,.1f}/s"),
            ("workers", str(queue.workers)),
        ]
    print_details(
        out,
        [
            ("queue", policy.name),
            *activity,
            ("concurrency", "unlimited (slots of the workers)" if policy.concurrency is None else policy.concurrency),
            ("retries", policy.retries or "when they are due"),
            ("order", "fair between tenants" if policy.fair else "by priority"),
            ("shares", ", ".join(f"{tenant}={share}" for tenant, share in sorted(policy.shares.items()))),
        ],
    )


@command(group, "pause")
async def pause(
    api: Client,
    out: Output,
    names: Names = None,
    everything: All = False,
    until: Until = None,
    why: Why = "",
    yes: Yes = False,
) -> None:
    """Pause queues: no more of their runs are started. Active runs continue, new ones wait.

    Examples:

    mainspring queues pause mail --until 18:00 --why "the provider is down"

    mainspring queues pause --all --yes
    """
    pause_body = build_pause(until, why, api.clock.now())
    if _check_selection(api, names, everything):
        confirm("pause all queues of all tenants", yes)
        answer = await api.ask("POST", "/v1/pause", body=pause_body, repeatable=True)
        out.render(answer, ["*"], lambda: out.print("all queues are paused; to resume: mainspring queues resume --all"))
        return

    async def one(name: str) -> tuple[Raw, str, str]:
        body = {**pause_body, "tenant": api.tenant}
        answer = await api.ask("POST", f"/v1/queues/{quote_segment(name)}/pause", body=body, repeatable=True)
        return answer, name, f"queue {name} is paused{_describe_tenant(api)}{format_until(answer)}"

    await act_on_each(out, names or [], one)


@command(group, "resume")
async def resume(api: Client, out: Output, names: Names = None, everything: All = False) -> None:
    """Resume queues. With --all, lift the pause of everything; queues paused individually stay paused.

    Example: mainspring queues resume mail
    """
    if _check_selection(api, names, everything):
        answer = await api.ask("POST", "/v1/resume", repeatable=True)
        out.render(answer, ["*"], lambda: out.print("the pause of all queues is lifted"))
        return

    async def one(name: str) -> tuple[Raw, str, str]:
        body = {"tenant": api.tenant}
        answer = await api.ask("POST", f"/v1/queues/{quote_segment(name)}/resume", body=body, repeatable=True)
        return answer, name, f"queue {name} is resumed{_describe_tenant(api)}"

    await act_on_each(out, names or [], one)


def _check_selection(api: Client, names: list[str] | None, everything: bool) -> bool:
    if bool(names) == everything:
        raise Invalid("queue", "no selection" if not names else "contradicts --all", "pass names, or --all")
    if everything and api.tenant is not None:
        raise Invalid("--all", "applies to all tenants", "omit --tenant")
    return everything


def _describe_tenant(api: Client) -> str:
    return "" if api.tenant is None else f" for tenant {api.tenant}"
