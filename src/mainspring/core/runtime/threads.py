"""Thread helpers for event loops."""

import asyncio
import threading
from contextlib import suppress


async def joined(thread: threading.Thread) -> None:
    """Return when a thread has ended.

    Waits on a separate thread, because handlers may occupy all threads of the loop's pool.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def wait() -> None:
        thread.join()
        with suppress(RuntimeError):  # The loop is closed: no caller waits any more.
            loop.call_soon_threadsafe(ended.set)

    try:
        threading.Thread(target=wait, name=f"{thread.name}: end", daemon=True).start()
    except RuntimeError:
        # The interpreter exits and starts no more threads. Nothing else runs on this loop then.
        thread.join()
        return
    await ended.wait()
