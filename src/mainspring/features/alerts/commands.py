"""``mainspring notify``: test alert channels."""

from typing import Annotated

import msgspec
import typer

from mainspring.cli.client.target import Client, command, read, segment
from mainspring.cli.client.waiting import wait_for
from mainspring.cli.output import Output

group = typer.Typer(name="notify", help="Try the channels that tell people of problems.", no_args_is_help=True)


class _Made(msgspec.Struct, rename="camel"):
    run_id: str


def register(application: typer.Typer) -> None:
    application.add_typer(group)


@command(group, "test")
async def try_channel(
    api: Client,
    out: Output,
    channel: Annotated[str, typer.Argument(help="A channel of the settings.", show_default=False)],
    owner: Annotated[
        str | None,
        typer.Option("--owner", help="Of a channel that writes to owners: which one.", show_default=False),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until a worker has sent it.")] = True,
) -> None:
    """Send a test message to a channel and report whether it arrived.

    A worker sends it with its settings and secrets.

    Example: mainspring notify test ops
    """
    body = {} if owner is None else {"owner": owner}
    answer = await api.ask("POST", f"/v1/notifications/channels/{segment(channel)}/test", body=body)
    made = read(answer, _Made)
    if wait:
        await wait_for(api, out, made.run_id)
    else:
        out.tell(answer, [made.run_id], lambda: out.say(f"run {made.run_id} sends it"))
