"""What archiving and dropping a day costs live work: before, beside and after it, in one run, on much history.

    python -m bench.experiments.retention postgresql://… [million runs]

Makes a database of its own there and drops it afterwards. The full cycle (submit, claim, complete) continues in this
process; a second one does what a scheduler does with history, until the oldest day is archived and gone.
"""

import asyncio
import sys
import tempfile
import time
import uuid
from pathlib import Path
from random import Random
from statistics import quantiles
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import msgspec

from mainspring.core.model.base.ids import IdMaker, JobId
from mainspring.core.model.base.instant import DAY, HOUR
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.core.store import Demand, NewSession
from mainspring.features.archive.service import Archiver, list_manifests
from mainspring.integrations.files.folder import FolderBlobs
from mainspring.stores.postgres import PostgresStore
from tools.much_history import write_history

_BATCH = 200
_WORKERS = 4
#: Seconds of each phase without the archive.
_QUIET = 30
#: The history is of so many days and some hours: the oldest whole day, and the piece before it, are past.
_DAYS = 28
_EVER = 10_000 * DAY
_ALL = Retention(succeeded=_EVER, unsuccessful=_EVER, ledger=_EVER, short=_EVER, long=_EVER, audit=_EVER)


class Window(msgspec.Struct):
    seconds: float
    done: int
    claims: list[float]

    @property
    def rate(self) -> float:
        return self.done / self.seconds

    @property
    def p99(self) -> float:
        return quantiles(self.claims, n=100)[98] * 1_000


class Live:
    """The full cycle, over and over."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._ids = IdMaker(Random())
        self.done = 0
        self.claims: list[float] = []

    def run(self, queue: str) -> NewRun:
        now = time.time_ns() // 1_000
        return NewRun(id=self._ids.run(now, now % 8), task="noop", queue=queue)

    async def work(self, number: int) -> None:
        store, queue = self._store, f"live-{number}"
        session = await store.open_session(NewSession(name=f"bench-{number}", kind="worker", ttl=HOUR))
        claim = 0
        while True:
            runs = [self.run(queue) for _ in range(_BATCH)]
            await store.submit(runs)
            claim += 1
            began = time.monotonic()
            held = await store.claim(session, claim, [Demand(queue, _BATCH)])
            self.claims.append(time.monotonic() - began)
            await store.complete([complete_success(run, None) for run in held])
            self.done += len(held)

    async def window(self, over: "asyncio.Future[object] | asyncio.Task[object]") -> Window:
        self.done, self.claims = 0, []
        began = time.monotonic()
        await over
        return Window(time.monotonic() - began, self.done, self.claims)


async def keep(dsn: str, folder: str, kept: int) -> None:
    """What a scheduler does with history, until there is nothing left to do."""
    store = PostgresStore(dsn, connections=2)
    await store.open()
    blobs = FolderBlobs(Path(folder))
    archiver = Archiver(store, blobs, SystemClock(), lambda: {0}, lambda: False)
    retention = msgspec.structs.replace(_ALL, succeeded=kept, unsuccessful=kept)
    while True:
        spared, more = await archiver.step(retention)
        if not await store.prune(spared, 5_000) and not more:
            break
        await asyncio.sleep(0.1)
    await store.close()
    parts = await list_manifests(blobs)
    size, runs = sum(part.size for part in parts), sum(part.runs for part in parts)
    print(f"archived {runs:,} runs in {sum(len(part.files) for part in parts)} files, {size / 1e6:,.0f} MB", flush=True)


async def main() -> None:
    if sys.argv[1] == "--keep":
        await keep(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    server, millions = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 50
    name = f"bench_retention_{uuid.uuid4().hex[:8]}"
    admin = await asyncpg.connect(server)
    await admin.execute(f"CREATE DATABASE {name}")
    dsn = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    try:
        await measure(dsn, round(millions * 1_000_000))
    finally:
        # Not by force: vacuum may be at work there, whose process is not ours to end.
        await admin.execute(f"DROP DATABASE {name}")
        await admin.close()


async def measure(dsn: str, runs: int) -> None:
    store = PostgresStore(dsn, connections=12)
    await store.open()
    now = await store.now()
    began = time.monotonic()
    # A tenant with a number is what the history is written for.
    live = Live(store)
    await store.submit([live.run("first")])
    await write_history(dsn, store, runs, [JobId(uuid.uuid4().hex)], now, _DAYS)
    print(f"{runs:,} runs of history written in {time.monotonic() - began:,.0f} s", flush=True)
    workers = [asyncio.create_task(live.work(number)) for number in range(_WORKERS)]
    await asyncio.sleep(5)
    before = await live.window(asyncio.ensure_future(asyncio.sleep(_QUIET)))
    with tempfile.TemporaryDirectory() as folder:
        kept = now % DAY + (_DAYS - 2) * DAY
        keeper = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.experiments.retention", "--keep", dsn, folder, str(kept)
        )
        beside = await live.window(asyncio.ensure_future(keeper.wait()))
        after = await live.window(asyncio.ensure_future(asyncio.sleep(_QUIET)))
    for task in workers:
        task.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    await store.close()
    for words, one in (("before", before), ("beside", beside), ("after", after)):
        claims = f"claim p99 {one.p99:.1f} ms of {len(one.claims):,}"
        print(f"{words}: {one.seconds:.0f} s, {one.rate:,.0f} runs/s, {claims}")
    quiet_rate, quiet_p99 = (before.rate + after.rate) / 2, max(before.p99, after.p99)
    print(f"beside it: {beside.rate / quiet_rate:.2f} of the rate, {beside.p99 / quiet_p99:.2f} times the claim p99")


if __name__ == "__main__":
    asyncio.run(main())
