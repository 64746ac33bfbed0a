"""Tasks that stop in different ways, and tell a file when they began and when they saw that they should."""

import asyncio
import time
from pathlib import Path

from mainspring import Context, Mainspring

app = Mainspring("stopping.db")


def _tell(note: str, what: str) -> None:
    Path(f"{note}.{what}").write_text(str(time.time()))


@app.task
async def on_the_loop(note: str) -> None:
    _tell(note, "began")
    try:
        await asyncio.sleep(1_000)
    except asyncio.CancelledError:
        _tell(note, "stopped")
        raise


@app.task
def in_a_child(context: Context, note: str) -> None:
    _tell(note, "began")
    try:
        while not context.cancelled:
            time.sleep(0.01)
    finally:
        _tell(note, "stopped")
