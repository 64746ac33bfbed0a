"""An application whose handlers record each start and each end in a file outside of the store."""

import asyncio
import os

from mainspring import Context, Mainspring

app = Mainspring()


def witness(word: str, context: Context) -> None:
    # A short line is appended as a whole, even if other processes write, too.
    descriptor = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{word} {context.run_id}\n".encode())
    finally:
        os.close(descriptor)


@app.task(queue="load")
async def seen(context: Context, milliseconds: int) -> None:
    witness("start", context)
    await asyncio.sleep(milliseconds / 1_000)
    witness("end", context)


@app.every("1s")
@app.task(queue="load")
async def tick(context: Context) -> None:
    witness("start", context)
    witness("end", context)
