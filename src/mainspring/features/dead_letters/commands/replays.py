"""Commands for stored replays: ``mainspring dead-letters replay --canary``, ``replays`` and ``stop_replay``."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
import typer

from mainspring.cli import exits
from mainspring.cli.client.target import Client, Raw, decode_answer
from mainspring.cli.output import Output, format_status
from mainspring.core.model.base.instant import SECOND, Micros

_POLL_INTERVAL: Micros = SECOND // 4

Replay = Annotated[str, typer.Argument(help="The replay's id, as `replays` shows it.", metavar="REPLAY")]


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
    out.say(
        f"replay {identifier} continues if this command ends; to stop it: mainspring dead-letters stop {identifier}"
    )
    while (found := decode_answer(made, ReplayStatus)).state in ("canary", "going"):
        await api.clock.sleep(_POLL_INTERVAL)
        made = await api.ask("GET", f"/v1/dead-letters/replays/{identifier}")
    out.tell(made, [identifier], lambda: out.print(found.summary))
    if found.state == "stopped" or found.passed_over:
        raise typer.Exit(exits.PARTLY if found.replayed else exits.FAILED)


async def list_replays(api: Client, out: Output, limit: int) -> None:
    answer = await api.ask("GET", "/v1/dead-letters/replays", query={"tenant": api.tenant, "limit": min(limit, 1_000)})
    found = [decode_answer(item, ReplayStatus) for item in decode_answer(answer, dict[str, list[Raw]])["items"]]

    def rows() -> None:
        out.rows(
            ("REPLAY", "STATE", "REPLAYED", "BY", "MADE", "WHY"),
            [
                (
                    one.replay_id,
                    format_status(one.state),
                    f"{one.replayed:,}",
                    one.author,
                    out.time(one.made_at),
                    one.why,
                )
                for one in found
            ],
            right=("REPLAYED",),
        )

    out.tell(answer, [one.replay_id for one in found], rows)


async def stop_replay(api: Client, out: Output, replay: str, why: str) -> None:
    answer = await api.ask("POST", f"/v1/dead-letters/replays/{replay}/stop", body={"why": why})
    out.tell(answer, [replay], lambda: out.print(decode_answer(answer, ReplayStatus).summary))
