"""``mainspring replays``: the stored replays that ``mainspring dead-letters replay --canary`` starts."""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec
import typer

from mainspring.cli import exits
from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, Raw, decode_answer
from mainspring.cli.fields import Limit
from mainspring.cli.output import Output, format_status, print_details
from mainspring.core.model.base.instant import SECOND, Micros

_POLL_INTERVAL: Micros = SECOND // 4

group = typer.Typer(name="replays", help="List, show and cancel replays of dead letters.", no_args_is_help=True)

Replay: TypeAlias = Annotated[
    str, typer.Argument(help="The replay's id, or the last characters of the id.", metavar="REPLAY")
]


class ReplayStatus(msgspec.Struct, rename="camel"):
    replay_id: str
    state: str
    author: str
    made_at: str
    replayed: int = 0
    passed_over: int = 0
    why: str = ""

    @property
    def summary(self) -> str:
        counts = f"{self.replayed:,} replayed"
        if self.passed_over:
            counts += f", {self.passed_over:,} skipped"
        return f"replay {self.replay_id} is {self.state}: {counts}" + (f"; {self.why}" if self.why else "")


async def start_replay(api: Client, out: Output, request: Mapping[str, object]) -> None:
    """Start a replay and wait for its end. Interrupting the command does not stop the replay."""
    body = {name: value for name, value in request.items() if value is not None}
    made = await api.ask("POST", "/v1/dead-letters/replays", body=body)
    identifier = decode_answer(made, ReplayStatus).replay_id
    out.report(
        f"replay {identifier} continues if this command ends; to cancel it: mainspring replays cancel {identifier}"
    )
    while (found := decode_answer(made, ReplayStatus)).state in ("canary", "going"):
        await api.clock.sleep(_POLL_INTERVAL)
        made = await api.ask("GET", f"/v1/dead-letters/replays/{identifier}")
    out.render(made, [identifier], lambda: out.print(found.summary))
    if found.state == "stopped" or found.passed_over:
        raise typer.Exit(exits.PARTLY if found.replayed else exits.FAILED)


@command(group, "list")
async def list_replays(api: Client, out: Output, limit: Limit = 50) -> None:
    """List replays with canaries, newest first, with their progress and why one was stopped.

    Example: mainspring replays list
    """
    answer = await api.ask("GET", "/v1/dead-letters/replays", query={"tenant": api.tenant, "limit": min(limit, 1_000)})
    found = [decode_answer(item, ReplayStatus) for item in decode_answer(answer, dict[str, list[Raw]])["items"]]

    def rows() -> None:
        out.rows(
            ("REPLAY", "STATE", "REPLAYED", "BY", "MADE", "WHY"),
            [
                (
                    out.id(one.replay_id),
                    format_status(one.state),
                    f"{one.replayed:,}",
                    one.author,
                    out.time(one.made_at),
                    one.why,
                )
                for one in found
            ],
            right=("REPLAYED",),
            empty="no replays",
        )

    out.render(answer, [one.replay_id for one in found], rows)


@command(group, "show")
async def show_replay(api: Client, out: Output, replay: Replay) -> None:
    """Show a replay: its state, its progress and who started it.

    Example: mainspring replays show 8042b1c2d3e4
    """
    identifier = await api.replay(replay)
    answer = await api.ask("GET", f"/v1/dead-letters/replays/{identifier}")
    found = decode_answer(answer, ReplayStatus)

    def show() -> None:
        print_details(
            out,
            [
                ("replay", found.replay_id),
                ("state", format_status(found.state)),
                ("replayed", f"{found.replayed:,}"),
                ("skipped", f"{found.passed_over:,}" if found.passed_over else ""),
                ("by", found.author),
                ("made", f"{found.made_at}  {out.time(found.made_at)}"),
                ("why", found.why),
            ],
        )

    out.render(answer, [identifier], show)


@command(group, "cancel")
async def cancel_replay(
    api: Client,
    out: Output,
    replay: Replay,
    why: Annotated[str, typer.Option("--why", help="The reason, shown with the replay.", show_default=False)] = "",
) -> None:
    """Cancel a replay: it creates no more runs; the runs that it has created continue.

    Example: mainspring replays cancel 8042b1c2d3e4 --why "wrong group"
    """
    identifier = await api.replay(replay)
    answer = await api.ask("POST", f"/v1/dead-letters/replays/{identifier}/stop", body={"why": why})
    out.render(answer, [identifier], lambda: out.print(decode_answer(answer, ReplayStatus).summary))
