"""An application whose handlers submit runs from every executor."""

import asyncio
import os

from mainspring import Mainspring

app = Mainspring("code.db")


@app.task
async def noop() -> None: ...


@app.task
def from_child() -> None:
    asyncio.run(noop.submit())


@app.task(executor="thread")
def from_thread() -> None:
    asyncio.run(noop.submit())


@app.task
async def from_loop() -> None:
    await noop.submit()


@app.task
def identify() -> int:
    return os.getpid()
