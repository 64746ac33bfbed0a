"""The load: crons that tick every second, and runs that are submitted in batches over HTTP, during all faults."""

import asyncio
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import httpx2

#: So many batches a second.
BATCHES = 20
#: Batches that wait for an answer, at most: beyond that the load is held back.
IN_FLIGHT = 20 * BATCHES
#: Statuses of an API that is out of time, out of room, or without its store.
_AGAIN = (408, 429, 500, 502, 503, 504)
#: One run of so many leaves an effect in a transaction; one of so many is for later.
EFFECT_EVERY, LATER_EVERY = 50, 10


class SubmitRejected(Exception):
    """The API found something wrong with what was sent."""


class Load:
    """Every run has a key of its own. A batch without an answer is sent again, to the other API, until it has one."""

    def __init__(self, apis: list[str], rate: int, path: Path) -> None:
        self._apis = itertools.cycle(apis)
        self._size = max(rate // BATCHES, 1)
        self._file = path.open("w")
        self._numbers = itertools.count()
        self._batches: set[asyncio.Task[None]] = set()
        self._client = httpx2.AsyncClient(timeout=8)
        self._pacing: asyncio.Task[None] | None = None
        self.acknowledged = 0
        self.sent_again = 0

    async def declare(self, count: int) -> list[str]:
        """The crons. Each tick must run, however late."""
        jobs = [
            {
                "task": "tick",
                "queue": "ticks",
                "name": f"tick-{number}",
                "cronExpression": "* * * * * *",
                "catchUp": {"mode": "all", "cap": 10_000},
            }
            for number in range(count)
        ]
        answers = await self._send(jobs)
        return [answer["jobId"] for answer in answers]

    def start(self) -> None:
        self._pacing = asyncio.create_task(self._pace())

    async def stop(self, seconds: float) -> None:
        """Stop submitting and wait for answers. A submit without an answer was never acknowledged."""
        if self._pacing is not None:
            self._pacing.cancel()
        if self._batches:
            done, pending = await asyncio.wait(self._batches, timeout=seconds)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            for task in done:
                task.result()
        await self._client.aclose()
        self._file.close()

    async def _pace(self) -> None:
        started = time.monotonic()
        for number in itertools.count():
            await asyncio.sleep(max(started + number / BATCHES - time.monotonic(), 0))
            if len(self._batches) < IN_FLIGHT:
                task = asyncio.create_task(self._batch())
                self._batches.add(task)
                task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is None:
            self._batches.discard(task)

    async def _batch(self) -> None:
        jobs = [_a_job(f"{next(self._numbers)}") for _ in range(self._size)]
        answers = await self._send(jobs)
        now = time.time_ns() // 1_000
        for job, answer in zip(jobs, answers, strict=True):
            line = {"kind": "acknowledged", "run": answer["jobId"], "at": now, "key": job["idempotencyKey"]}
            self._file.write(json.dumps(line | {"effect": job["task"] == "effect"}) + "\n")
        self.acknowledged += len(jobs)

    async def _send(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Until each of them is acknowledged; the answers, in order."""
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < len(jobs):
            missing = [number for number in range(len(jobs)) if number not in answers]
            try:
                answer = await self._client.post(
                    f"{next(self._apis)}/v1/jobs/batch", json={"jobs": [jobs[number] for number in missing]}
                )
            except httpx2.TransportError:
                answer = None
            if answer is not None and answer.is_success:
                for number, item in zip(missing, answer.json()["items"], strict=True):
                    if "jobId" in item:
                        answers[number] = item
                    elif item["problem"]["status"] not in _AGAIN:
                        raise SubmitRejected(str(item))
            elif answer is not None and answer.status_code not in _AGAIN:
                raise SubmitRejected(answer.text)
            if len(answers) < len(jobs):
                self.sent_again += 1
                await asyncio.sleep(0.1 + random.random() / 5)
        return [answers[number] for number in range(len(jobs))]


def _a_job(key: str) -> dict[str, Any]:
    job: dict[str, Any] = {"queue": "load", "idempotencyKey": key}
    if random.randrange(EFFECT_EVERY) == 0:
        return job | {"task": "effect", "payload": {"key": key}}
    if random.randrange(LATER_EVERY) == 0:
        job["delay"] = f"{random.randrange(1, 4)}s"
    return job | {"task": "moment", "payload": {"key": key, "milliseconds": random.choice((1, 5, 20, 100))}}
