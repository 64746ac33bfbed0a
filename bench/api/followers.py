"""Followers of events beside the load: their cost for the API, and whether they receive all events.

The rate with them is compared with the rates before and after: machines change from one minute to the next. Each of the
three has an API process of its own, so that nothing is left of the followers when they are gone.
"""

import asyncio
import contextlib
import re
import resource
from typing import cast

from bench.api.load import HOST
from bench.api.submit import ids_of, single, used_per_job, verify
from bench.engine.full_cycle import LostOrDoubled
from bench.engine.load import Load
from bench.figures import Figures, minutes
from bench.measurement import Bench
from bench.sizes import Sizes

#: How long events may be on their way after the last submit, and followers after the first.
_PATIENCE = 30
_HELLO = re.compile(rb"\nevent: hello\n")
_COUNT = re.compile(rb'\nevent: run\.submitted\ndata: \{"time":"[^"]*","tenant":"[^"]*","count":(\d+),')
#: What the beginning of such an event may be long at most.
_LONGEST = 200
#: Files that a process has open besides the followers.
_OTHER_FILES = 200


async def measure(bench: Bench) -> Figures:
    sizes = bench.sizes
    if (reason := _no_room(sizes.api_followers + sizes.api_connections + _OTHER_FILES)) is not None:
        return {"skipped": {"followers": reason}}
    rates: list[float] = []
    used: list[dict[str, float]] = []
    accepted: list[str] = []
    told: list[int] = []
    readers = 0
    async with bench.system("followers", connected=False) as system:
        crowd = system.start_caller("followers")
        for followers in (0, sizes.api_followers, 0):
            port = await system.start_api()
            await crowd.call(follow, port=port, count=followers)
            bench.say(f"api: one job a request beside {followers:,} followers, {minutes(sizes.api_seconds)}")
            before = system.processor_seconds()
            result = await single(system, port, sizes)
            ids = ids_of(result)
            used.append(used_per_job(system, before, len(ids)))
            rates.append(result["rate"])
            accepted += ids
            if followers:
                readers = await system.site.readers()
                told = await crowd.call(leave, jobs=len(ids))
                _check_told(told, len(ids))
            await system.children.stop("api")
        await verify(system, accepted)
    return {
        "api_followers": len(told),
        "api_followers_rate_to_without": round(rates[1] * 2 / (rates[0] + rates[2]), 3),
        "api_followers_jobs_per_s_without_with_without": [round(rate) for rate in rates],
        "api_followers_processor_us_per_job_without_with_without": used,
        "api_followers_told_of_each": min(told),
        "api_followers_store_readers": readers,
    }


def _check_told(told: list[int], jobs: int) -> None:
    if wrong := sum(count != jobs for count in told):
        raise LostOrDoubled(
            f"of {jobs} jobs followers were told of {min(told)} to {max(told)}: {wrong} of {len(told)} not of all, once"
        )


class Follower(asyncio.Protocol):
    """Counts the jobs that it receives events about."""

    def __init__(self) -> None:
        self.told = 0
        self.welcome = asyncio.get_running_loop().create_future()
        self.transport: asyncio.WriteTransport | None = None
        self._rest = b""
        self._more = asyncio.Event()

    async def told_of(self, jobs: int) -> None:
        while self.told < jobs:
            self._more.clear()
            await self._more.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)
        self.transport.write(f"GET /v1/events HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        done = max(0, len(data) - _LONGEST)
        for found in _COUNT.finditer(data):
            self.told += int(found[1])
            done = max(done, found.end())
            self._more.set()
        # The beginning of an event may be here and its number in what comes next.
        self._rest = data[done:]
        if not self.welcome.done() and _HELLO.search(data):
            self.welcome.set_result(None)


async def follow(load: Load, port: int, count: int) -> None:
    """Return when all of them are heard."""
    loop = asyncio.get_running_loop()
    followers = [(await loop.create_connection(Follower, HOST, port))[1] for _ in range(count)]
    load.kept["followers"] = followers
    async with asyncio.timeout(_PATIENCE):
        await asyncio.gather(*(follower.welcome for follower in followers))


async def leave(load: Load, jobs: int) -> list[int]:
    """Wait until every follower has received events of this many jobs, or for a while. Return the counts."""
    followers: list[Follower] = load.kept.pop("followers")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            for follower in followers:
                await follower.told_of(jobs)
    for follower in followers:
        assert follower.transport is not None
        follower.transport.close()
    return [follower.told for follower in followers]


def _no_room(files: int) -> str | None:
    """Have processes that are started from now on open so many files; why not, if they may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (resource.RLIM_INFINITY, -1) and hard < files:
        return f"a process may open {hard} files here, and {files} are needed (ulimit -n)"
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return None


def estimate(sizes: Sizes) -> float:
    return 3 * (sizes.api_warm_up + sizes.api_seconds) + 10
