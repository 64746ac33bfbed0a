"""Tasks that stop in different ways. Each makes a file when it begins, and another one when it stops."""

import asyncio
from pathlib import Path

from mainspring import Context, Mainspring
from tests.support.waiting import wait_until

app = Mainspring("stopping.db")


@app.task
async def on_the_loop(note: str) -> None:
    Path(f"{note}.began").write_text("began")  # noqa: ASYNC240
    try:
        await asyncio.sleep(1_000)
    except asyncio.CancelledError:
        Path(f"{note}.stopped").write_text("stopped")  # noqa: ASYNC240
        raise


@app.task
def in_a_child(context: Context, note: str) -> None:
    Path(f"{note}.began").write_text("began")
    try:
        wait_until(lambda: context.cancelled, deadline=1_000)
    finally:
        Path(f"{note}.stopped").write_text("stopped")
