"""The processor time that the task catalog takes of a submit: with and without entries, in alternating slices.

    python -m bench.experiments.task_catalog_cost [slices]

Two stores in memory, in one process: one has an empty catalog, the other 1,000 tasks with eight arguments each. Both
get the same submits:

- of a task that this program defines, which does not read the catalog;
- of a task by its name, which takes its options and checks the arguments;
- by `POST /v1/jobs`, which does the same.

A slice is a few hundred submits. The processor time is that of the thread, so other programs hardly change it. The
catalog is read in the background once a second; that is included. The tasks declare no options: what an option
costs, it costs in any request.
"""

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from statistics import median
from time import thread_time

from mainspring import Mainspring
from mainspring.config.api import open_local_api
from mainspring.config.loading import load
from mainspring.config.resources import RESOURCES
from mainspring.config.runtime import Runtime
from mainspring.core.model.tasks.task_entry import TaskEntry
from mainspring.http.app import make_app
from mainspring.http.asgi_types import ASGIApp, Message

_TASKS = 1_000
_SUBMITS = 300
_BODY = json.dumps({"task": "bench.a0", "payload": {"number": 1, "text": "x"}}).encode()
Submit = Callable[[], Awaitable[object]]


async def main() -> None:
    slices = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    async with AsyncExitStack() as stack:
        without = await submits(stack, entries=[])
        with_entries = await submits(stack, entries=some_entries())
        gc.disable()
        for what, bare in without.items():
            full = with_entries[what]
            await measure(bare)
            await measure(full)
            pairs = []
            for number in range(slices):
                if number % 2:
                    more, less = await measure(full), await measure(bare)
                else:
                    less, more = await measure(bare), await measure(full)
                pairs.append((less, more))
                gc.collect()
            less, more = (median(pair[side] for pair in pairs) for side in (0, 1))
            change = median(more - less for less, more in pairs)
            share = median(more / less - 1 for less, more in pairs)
            print(f"{what}: {less:.1f} µs without, {more:.1f} µs with entries: {change:+.2f} µs, {share:+.1%}")


def some_entries() -> list[TaskEntry]:
    app = Mainspring("memory:")
    for number in range(_TASKS):

        @app.task(name=f"bench.a{number}")
        async def task(
            number: int, text: str = "", a: int = 0, b: int = 0, c: int = 0, d: str = "", e: str = "", f: bool = True
        ) -> None: ...

    return app.entries()


async def submits(stack: AsyncExitStack, entries: list[TaskEntry]) -> dict[str, Submit]:
    """Return the ways to submit to a store of its own, whose catalog has these entries."""
    runtime = Runtime(load({"store": "memory:"}))
    await runtime.open()
    stack.push_async_callback(runtime.close)
    if entries:
        await runtime.store.register_tasks(entries, "bench")
    app = Mainspring("memory:")
    app.use(runtime)

    @app.task
    async def own(number: int, text: str) -> None: ...

    named = app.named("bench.a0")
    api = await stack.enter_async_context(open_local_api(runtime))
    serve = make_app(api, RESOURCES)
    return {
        "task.submit": lambda: own.submit(1, "x"),
        "submit by name": lambda: named.submit(number=1, text="x"),
        "POST /v1/jobs": lambda: post(serve),
    }


async def post(app: ASGIApp) -> None:
    status = 0

    async def receive() -> Message:
        return {"type": "http.request", "body": _BODY, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            assert isinstance(message["status"], int)
            status = message["status"]

    headers = [
        (b"host", b"127.0.0.1"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(_BODY)).encode()),
    ]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/jobs",
        "raw_path": b"/v1/jobs",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "http_version": "1.1",
        "scheme": "http",
    }
    await app(scope, receive, send)
    assert status == 201, status


async def measure(submit: Submit) -> float:
    """Return the microseconds of processor time of one submit, of a slice of them."""
    began = thread_time()
    for _ in range(_SUBMITS):
        await submit()
    return (thread_time() - began) / _SUBMITS * 1e6


if __name__ == "__main__":
    asyncio.run(main())
