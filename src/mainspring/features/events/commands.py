"""``mainspring events``: follow the changes of runs."""

import msgspec
import typer

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer
from mainspring.cli.output import Output


class EventLine(msgspec.Struct, rename="camel"):
    time: str
    tenant: str
    count: int
    run_ids: list[str]


def register(application: typer.Typer) -> None:
    @command(application, "events")
    async def events(api: Client, out: Output) -> None:
        """Follow all changes of runs, one line each, until Ctrl-C.

        A broken connection loses nothing for ten minutes.

        Examples:

        mainspring events

        mainspring events --json | jq 'select(.event == "run.failed")'
        """
        async for kind, data in api.events("/v1/events", {"tenant": api.tenant}):
            if kind == "gap":
                out.warn("some events were dropped")
            elif kind.startswith("run."):
                event = decode_answer(data, EventLine)
                runs = ", ".join(map(out.id, event.run_ids[:3])) + (", …" if event.count > 3 else "")
                when = event.time[11:19]
                if out.quiet:
                    for run in event.run_ids:
                        typer.echo(run)
                else:
                    out.line(
                        {"event": kind, **decode_answer(data, dict[str, object])},
                        f"{when}  {kind.removeprefix('run.'):10}  {event.count:6,}  {event.tenant}  {runs}",
                    )
