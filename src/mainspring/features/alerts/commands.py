"""``mainspring notify``: test alert channels."""

from typing import Annotated

import msgspec
import typer

from mainspring.cli.client.target import Client, command, decode_answer, quote_segment
from mainspring.cli.client.waiting import wait_for
from mainspring.cli.output import Output

group = typer.Typer(name="notify", help="Test the channels that alerts are sent to.", no_args_is_help=True)


class _RunOut(msgspec.Struct, rename="camel"):
    run_id: str


def register(application: typer.Typer) -> None:
    application.add_typer(group)


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

    Example: mainspring notify test ops
    """
    body = {} if owner is None else {"owner": owner}
    answer = await api.ask("POST", f"/v1/notifications/channels/{quote_segment(channel)}/test", body=body)
    run = decode_answer(answer, _RunOut)
    if wait:
        await wait_for(api, out, run.run_id)
    else:
        out.tell(answer, [run.run_id], lambda: out.say(f"run {run.run_id} sends the message"))
