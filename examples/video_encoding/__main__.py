"""``python -m examples.video_encoding``: uploads come all at once, and workers with them."""

import argparse
import asyncio
import random
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2

from examples.processes import Processes, run, say
from examples.video_encoding.application import PRIORITIES, app, upload
from examples.video_encoding.encoder import FRAME
from mainspring import RunHandle

SLOTS = 2


async def main(videos: int, frames: int, fleet: str) -> bool:
    settings = app.settings()
    address = f"http://{settings.host}:{settings.port}"
    # This process schedules and answers HTTP. The work is done by others, which a parent starts and stops by the load.
    async with app.running(worker=False, http=True), httpx2.AsyncClient(base_url=address, timeout=60) as api:
        with Processes(Path("video_encoding.log")) as processes:
            say(f"The API is at {address}/docs, what workers say in video_encoding.log")
            # 10:100 in a data center.
            processes.start("worker", "examples.video_encoding:app", "--autoscale", fleet)
            jobs = await uploads(videos, frames)
            say(f"{videos} uploads have made {len(jobs)} jobs: {', '.join(PRIORITIES)} of each video, in this order")
            watching = asyncio.create_task(watch(api))
            # More uploads come until another worker has started, and a few after that.
            while (await load_of(api))["workers"] < 2:
                await asyncio.sleep(1)
                jobs += await uploads(1, frames)
            jobs += await uploads(4, frames)
            views = [await job.wait() for job in jobs]
            watching.cancel()
            retried = sum(view.attempt > 1 for view in views)
            workers = len({view.session for view in views})
            say(f"{len(jobs)} encoded by {workers} workers; {retried} were tried again after the encoder crashed")
            say("The outputs are in video_encoding.bucket/encoded")
            return {view.state.value for view in views} == {"succeeded"}


async def uploads(videos: int, frames: int) -> list[RunHandle[str]]:
    return [
        job for _ in range(videos) for job in await upload(f"video-{uuid4().hex[:8]}", random.randbytes(frames * FRAME))
    ]


async def load_of(api: httpx2.AsyncClient) -> dict[str, Any]:
    """What an autoscaler sees. The fleet looks at the same figures."""
    query = {"queue": "encoding", "slots": str(SLOTS)}
    [load] = (await api.get("/v1/autoscale", params=query)).raise_for_status().json()["queues"]
    return dict(load)


async def watch(api: httpx2.AsyncClient) -> None:
    while True:
        load = await load_of(api)
        say(
            f"  {load['queued']:3} queued, the oldest for {load['lagMs'] / 1000:4.1f} s, {load['running']:2} running "
            f"on {load['workers']} workers; the load asks for {load['recommendedWorkers']}"
        )
        await asyncio.sleep(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.video_encoding", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="a few short videos")
    fast = parser.parse_args().fast
    run("video_encoding", main(8, 6, "1:2") if fast else main(40, 60, "1:4"))
