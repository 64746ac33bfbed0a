"""``mainspring events``: follow the changes of runs."""

import msgspec
import typer

from mainspring.cli.client.target import Client, command, read
from mainspring.cli.output import Output


class Told(msgspec.Struct, rename="camel"):
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
                out.warn("some events were missed")
            elif kind.startswith("run."):
                told = read(data, Told)
                runs = ", ".join(map(out.id, told.run_ids[:3])) + (", …" if told.count > 3 else "")
                when = told.time[11:19]
                if out.quiet:
                    for run in told.run_ids:
                        typer.echo(run)
                else:
                    out.line(
                        {"event": kind, **read(data, dict[str, object])},
                        f"{when}  {kind.removeprefix('run.'):10}  {told.count:6,}  {told.tenant}  {runs}",
                    )
