"""Concurrent submits of one idempotency key to two API processes: one job, in any order of arrival."""

import asyncio
import time

from bench.api import load as api_load
from bench.api.submit import verify
from bench.engine.full_cycle import LostOrDoubled
from bench.engine.load import Load
from bench.figures import Figures
from bench.measurement import Bench
from bench.sizes import Sizes

_PATIENCE = 30


async def measure(bench: Bench) -> Figures:
    sizes = bench.sizes
    async with bench.system("key", connected=False) as system:
        # In one process they share a commit; those of two meet in the store.
        ports = [await system.start_api(), await system.start_api()]
        bench.say(f"api: {sizes.api_keys} keys, {sizes.api_same_key} submits of each at once")
        started = time.perf_counter()
        answers = await system.call(submit, ports=ports, keys=sizes.api_keys, times=sizes.api_same_key)
        took = time.perf_counter() - started
        jobs = [set(ids) for ids in answers]
        if several := sum(len(ids) != 1 for ids in jobs):
            raise LostOrDoubled(f"{several} of {len(jobs)} keys were answered with more than one job")
        made = set.union(*jobs)
        await verify(system, made)
    return {
        "api_keys": len(jobs),
        "api_same_key_jobs_per_key": round(len(made) / len(jobs), 4),
        "api_same_key_submits_per_s": round(sizes.api_keys * sizes.api_same_key / took),
    }


async def submit(load: Load, ports: list[int], keys: int, times: int) -> list[list[str]]:
    """Key after key, on so many connections at once; the jobs that were answered for each key."""
    answers: list[list[str]] = []
    complete = asyncio.Event()

    def answered(connection: api_load.Connection, status: int, body: bytes) -> None:
        if status != 201:
            raise api_load.wrong(status, body)
        answers[-1].append(api_load.job_id(body))
        if len(answers[-1]) == times:
            complete.set()

    opened = [await api_load.connect(ports[number % len(ports)], answered) for number in range(times)]
    failing = asyncio.gather(*(connection.ended for connection in opened))
    for number in range(keys):
        request = api_load.post("/v1/jobs", api_load.job(idempotencyKey=f"key-{number}"))
        complete.clear()
        answers.append([])
        for connection in opened:
            connection.ask(request)
        completing = asyncio.create_task(complete.wait())
        async with asyncio.timeout(_PATIENCE):
            await asyncio.wait((completing, failing), return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            completing.cancel()
            failing.result()
    for connection in opened:
        connection.close()
    await failing
    return answers


def estimate(sizes: Sizes) -> float:
    return sizes.api_keys * sizes.api_same_key / 500 + 5
