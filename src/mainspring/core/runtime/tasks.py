"""Ends background tasks."""

import asyncio
from typing import Any

_CANCEL_AGAIN_SECONDS = 1


async def cancel_and_wait(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel the tasks and return when all have ended. Their exceptions are dropped.

    A task that is still running after a second is cancelled again: on Python 3.11 ``asyncio.wait_for`` drops a
    cancellation that arrives together with its result, and libraries call it.
    """
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_CANCEL_AGAIN_SECONDS)
    for task in tasks:
        if not task.cancelled():
            task.exception()
