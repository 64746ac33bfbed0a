"""Waits for a run to end."""

import asyncio

import typer

from mainspring.cli import exits
from mainspring.cli.client.target import Client, decode_answer
from mainspring.cli.output import Output, format_elapsed
from mainspring.cli.tables.runs import describe_obstacle, find_start, format_result
from mainspring.core.model.base.instant import MILLISECOND, SECOND
from mainspring.core.model.runs.run import ENDED
from mainspring.core.runtime.backoff import Backoff
from mainspring.http.schemas.runs import RunOut

_FIRST_PAUSE = 50 * MILLISECOND
_ENDED = {state.value for state in ENDED}


async def wait_for(api: Client, out: Output, run: str) -> None:
    """Wait until the run has ended, print its result, and exit with a failure code unless it succeeded."""
    backoff = Backoff(_FIRST_PAUSE, SECOND)
    try:
        while True:
            answer = await api.ask("GET", f"/v1/runs/{run}")
            found = decode_answer(answer, RunOut)
            if found.status in _ENDED:
                break
            await api.clock.sleep(backoff.next())
    except asyncio.CancelledError:
        # Ctrl-C ends only the waiting, not the run.
        out.note(f"run {run} goes on")
        raise

    def show() -> None:
        result = format_result(found)
        if result not in ("", "null"):
            out.print(result)
        spent = format_elapsed(find_start(found), found.end_time)
        obstacle = describe_obstacle(found)
        out.report(
            f"run {run} {'was ' if found.status in ('cancelled', 'skipped') else ''}{found.status}"
            f"{f' after {spent}' if spent else ''}{f': {obstacle}' if obstacle else ''}"
        )

    out.render(answer, [run], show)
    if found.status != "succeeded":
        raise typer.Exit(exits.FAILED)
