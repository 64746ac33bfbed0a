"""``mainspring alerts``: open problems, rules and channels of alerts, and tests of channels."""

from typing import Annotated

import typer

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer, quote_segment
from mainspring.cli.client.waiting import wait_for
from mainspring.cli.output import Output
from mainspring.core.model.base.headline import find_headline
from mainspring.features.alerts.schemas import ChannelTestOut, NotificationsOut

group = typer.Typer(
    name="alerts", help="List open problems and alert rules, and test alert channels.", no_args_is_help=True
)


def register(application: typer.Typer) -> None:
    application.add_typer(group)


@command(group, "list")
async def list_alerts(api: Client, out: Output) -> None:
    """List open problems, alert rules and channels. The settings `notifications.*` define rules and channels.

    Example: mainspring alerts list
    """
    answer = await api.ask("GET", "/v1/notifications")
    found = decode_answer(answer, NotificationsOut)

    def show() -> None:
        if not found.channels:
            out.report("no alert channels are configured; see docs/guides/alerts.md")
            return
        out.rows(
            ("CHANNEL", "KIND", "TENANT", "WAITING"),
            [(one.name, one.kind, one.tenant, f"{one.waiting:,}") for one in found.channels],
            right=("WAITING",),
        )
        out.print()
        out.rows(
            ("RULE", "CHANNEL", "TENANT", "URGENT", "ON"),
            [(one.name, one.to, one.tenant, "yes" if one.urgent else "", ", ".join(one.on)) for one in found.rules],
        )
        if found.problems:
            out.print()
            out.rows(
                ("PROBLEM", "TASK", "COUNT", "SINCE", "ERROR"),
                [
                    (one.state, one.task, f"{one.count:,}", out.time(one.since), find_headline(one.error))
                    for one in found.problems
                ],
                right=("COUNT",),
            )
        else:
            out.report("no open problems")

    out.render(answer, [one.name for one in found.channels], show)


@command(group, "test")
async def try_channel(
    api: Client,
    out: Output,
    channel: Annotated[str, typer.Argument(help="The name of a configured channel.", show_default=False)],
    owner: Annotated[
        str | None,
        typer.Option("--owner", help="The owner to write to, for a channel that addresses owners.", show_default=False),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until a worker has sent the message.")] = True,
) -> None:
    """Send a test message to a channel and report whether it arrived.

    A worker sends it with its settings and secrets.

    Example: mainspring alerts test ops
    """
    body = {} if owner is None else {"owner": owner}
    answer = await api.ask("POST", f"/v1/notifications/channels/{quote_segment(channel)}/test", body=body)
    run = decode_answer(answer, ChannelTestOut)
    if wait:
        await wait_for(api, out, run.run_id)
    else:
        out.render(answer, [run.run_id], lambda: out.report(f"run {run.run_id} sends the message"))
