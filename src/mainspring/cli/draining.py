"""Drains workers and waits until they have left."""

import asyncio

from mainspring.cli.client.target import Client, Raw, decode_answer
from mainspring.cli.output import Output
from mainspring.core.model.base.errors import Invalid, NotFound
from mainspring.core.model.base.instant import MILLISECOND
from mainspring.http.schemas.workers import WorkerOut, Workers

_LOOK_EVERY = 500 * MILLISECOND


async def request_drain(api: Client, text: str) -> tuple[Raw, str]:
    """Drain the worker with this id or name. Returns the answer and the worker's id."""
    alive = await _list_alive(api)
    meant = [worker.worker_id for worker in alive if text in (worker.worker_id, worker.name)]
    if len(meant) > 1:
        raise Invalid("worker", f"{text!r} is the name of several", "their ids")
    if not meant:
        raise NotFound(f"there is no worker {text!r}; see: mainspring workers list")
    return await api.ask("POST", f"/v1/workers/{meant[0]}/drain", repeatable=True), meant[0]


async def wait_for_exit(api: Client, out: Output, worker: str) -> None:
    """Wait until the worker has left, and report its number of active runs whenever it changes."""
    shown: int | None = None
    try:
        while True:
            left = next((one for one in await _list_alive(api) if one.worker_id == worker), None)
            if left is None:
                return
            if left.running != shown:
                shown = left.running
                out.report(f"worker {worker} runs {shown} more" if shown else f"worker {worker} runs nothing any more")
            await api.clock.sleep(_LOOK_EVERY)
    except asyncio.CancelledError:
        # Ctrl-C ends only the waiting, not the drain.
        out.note(f"worker {worker} leaves all the same")
        raise


async def _list_alive(api: Client) -> list[WorkerOut]:
    return decode_answer(await api.ask("GET", "/v1/workers"), Workers).items
