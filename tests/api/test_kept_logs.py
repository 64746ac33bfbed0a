"""Logs of completed runs, in a folder or in a bucket of a real S3 server: moved there, read there, dropped."""

import asyncio
import gzip
import json
import signal
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mainspring.config.sections.storage import BlobsSection, RunLogsSection
from mainspring.config.servers.blobs import make_run_logs
from mainspring.config.settings import Settings
from mainspring.config.stores import RuntimeStore
from mainspring.core.logs.packed_log import pack
from mainspring.core.logs.run_logs import RunLogs
from mainspring.core.model.access.access import Quotas, Role, Tenant
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, MINUTE, SECOND, Micros, to_datetime
from mainspring.core.model.cluster.diagnosis import Level
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.blobs import BlobsUnavailable
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import LogReport
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.store import Demand
from mainspring.features.logs.service import LogKeeper, check_run_logs
from mainspring.integrations.files.folder import FolderBlobs
from tests.api.conftest import Service, memory_only
from tests.support.buckets import bucket_address, credentials_file, new_bucket, shared_s3
from tests.support.builders import a_policy, a_run, a_worker
from tests.support.servers import started
from tests.support.waiting import DEADLINE_SECONDS, eventually
from tools.services.s3 import S3

MINE: Mapping[int, int] = {0: 1}


@pytest.fixture(params=["folder", "s3"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return new_bucket(shared_s3())
    folder = tmp_path / "kept"
    folder.mkdir()
    return str(folder)


def run_logs(where: str, folder: Path) -> RunLogs:
    section = BlobsSection(credentials_file=str(credentials_file(folder)))
    found = make_run_logs(Settings(run_logs=RunLogsSection(location=where), blobs=section))
    assert found is not None
    return found


class Kept:
    """An API, and the log keeper that moves logs out of its store."""

    def __init__(self, store: RuntimeStore, logs: RunLogs, owned: Mapping[int, int] = MINE) -> None:
        self.store = store
        self.logs = logs
        self.service = Service(auth=False, store=store, run_logs=logs)
        # A busy S3 server may take long.
        self.service.api.logs.kept_timeout = DEADLINE_SECONDS
        self.client = self.service.client()
        self.pressed = False
        self.keeper = LogKeeper(
            store,
            logs,
            LocalWakeups(),
            self.service.clock,
            lambda: owned,
            30 * DAY,
            Retention(),
            lambda: self.pressed,
        )

    async def start(self, *runs: NewRun) -> list[HeldRun]:
        await self.store.submit(runs)
        worker = await self.store.open_session(a_worker(ttl=DAY))
        return await self.store.claim(worker, 1, [Demand("default", len(runs))])

    async def print(self, held: HeldRun, *texts: str) -> None:
        assert all(await self.store.append_log([LogReport(run=held.id, fence=held.fence, text=text) for text in texts]))

    async def succeed(self, *held: HeldRun) -> None:
        await self.store.complete([complete_success(run, None) for run in held])

    async def printed(self, *texts: str) -> HeldRun:
        """A completed run that printed these."""
        [held] = await self.start(a_run())
        await self.print(held, *texts)
        await self.succeed(held)
        return held

    async def in_store(self, held: HeldRun) -> list[str]:
        return [line.text for line in await self.store.log(held.id, 0, 1_000)]

    async def step(self) -> Micros:
        return await self.keeper.step()

    async def rest(self) -> None:
        """Step until nothing is left to do."""
        while await self.step() != 2 * SECOND:
            pass

    async def names(self, prefix: str = "logs") -> list[str]:
        return sorted([blob.name async for batch in self.logs.blobs.list(prefix) for blob in batch])

    async def wait_for_followers(self, *held: HeldRun) -> None:
        await eventually(lambda: all(run.id in self.service.api.tail._followed for run in held))

    async def refuse_url(self, held: HeldRun) -> None:
        """Check that the log has no address."""
        answer = await self.client.get(f"/v1/runs/{held.id}/logs", params={"url": True})
        assert (answer.status_code, answer.json()["title"]) == (409, "No address")

    async def get(self, held: HeldRun, **query: Any) -> dict[str, Any]:
        answer = await self.client.get(f"/v1/runs/{held.id}/logs", params=query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def texts(self, held: HeldRun, **query: Any) -> list[str]:
        return [line["text"] for line in (await self.get(held, **query))["items"]]


@pytest.fixture
async def kept(store: RuntimeStore, where: str, tmp_path: Path) -> AsyncIterator[Kept]:
    logs = run_logs(where, tmp_path)
    found = Kept(store, logs)
    async with found.client:
        yield found
    await logs.blobs.close()


async def test_a_log_reads_the_same_after_it_left_the_store(kept: Kept) -> None:
    held = await kept.printed("one\n", "two\n", "größe 🕰\n")
    before = await kept.get(held)
    await kept.step()
    assert await kept.in_store(held) == []
    assert await kept.get(held) == before
    assert [line["text"] for line in before["items"]] == ["one\n", "two\n", "größe 🕰\n"]
    assert before["ended"]
    assert (await kept.client.get(f"/v1/jobs/{held.id}/logs")).json() == before


async def test_the_log_of_an_active_run_stays_in_the_store(kept: Kept) -> None:
    running, ended = await kept.start(a_run(), a_run())
    for held in (running, ended):
        await kept.print(held, "first\n")
    await kept.succeed(ended)
    await kept.step()
    assert await kept.in_store(running) == ["first\n"]
    assert await kept.in_store(ended) == []
    await kept.print(running, "second\n")
    assert await kept.texts(running) == ["first\n", "second\n"]
    await kept.succeed(running)
    await kept.step()
    assert await kept.in_store(running) == []
    assert await kept.texts(running) == ["first\n", "second\n"]


async def test_a_long_log_is_read_in_pages(kept: Kept) -> None:
    texts = [f"{number:05} {'x' * 80}{number * 7919}\n" for number in range(4_000)]
    held = await kept.printed(*texts)
    await kept.step()
    read: list[str] = []
    after = 0
    while True:
        page = await kept.get(held, after=after, limit=900)
        read += [line["text"] for line in page["items"]]
        after = page["nextAfter"]
        if page.get("ended"):
            break
    assert read == texts
    assert await kept.texts(held, after=after) == []


async def test_a_long_log_is_read_in_pages_from_its_end(kept: Kept) -> None:
    texts = [f"{number:05} {'x' * 80}{number * 7919}\n" for number in range(4_000)]
    held = await kept.printed(*texts)
    in_the_store = await kept.get(held, last=True)
    await kept.step()
    end = await kept.get(held, last=True)
    assert end == in_the_store
    assert end["ended"]
    read = [line["text"] for line in end["items"]]
    assert read == texts[-500:]
    page = end
    while page["items"]:
        page = await kept.get(held, last=True, before=page["items"][0]["position"], limit=900)
        assert not page.get("ended")
        read = [line["text"] for line in page["items"]] + read
    assert read == texts
    assert await kept.texts(held, after=end["nextAfter"], last=True) == []
    assert await kept.texts(held, after=end["items"][-2]["position"], last=True) == texts[-1:]
    assert await kept.texts(held, before=end["items"][1]["position"], after=end["items"][0]["position"] - 1) == [
        end["items"][0]["text"]
    ]


async def test_a_follower_reads_a_kept_log_to_its_end(kept: Kept) -> None:
    held = await kept.printed("one\n", "two\n")
    await kept.step()
    followed = await kept.client.get(f"/v1/runs/{held.id}/logs/follow")
    events = [line for line in followed.text.splitlines() if line.startswith("event: ")]
    assert events == ["event: line", "event: line", "event: end"]


async def test_a_follower_misses_nothing_while_the_log_leaves_the_store(kept: Kept) -> None:
    [held] = await kept.start(a_run())
    await kept.print(held, "one\n")
    following = asyncio.create_task(kept.client.get(f"/v1/runs/{held.id}/logs/follow"))
    await kept.wait_for_followers(held)
    await kept.print(held, "two\n")
    await kept.succeed(held)
    await kept.step()
    assert await kept.in_store(held) == []
    text = (await following).text
    assert text.count("event: line") == 2
    assert "event: end" in text


@pytest.mark.slow
@pytest.mark.parametrize("where", ["folder"], indirect=True)
async def test_followers_continue_while_the_bucket_is_unavailable(kept: Kept, tmp_path: Path) -> None:
    silent, brief, long = await kept.start(a_run(), a_run(), a_run())
    for held in (brief, long):
        await kept.print(held, "one\n")
    following = [
        asyncio.create_task(kept.client.get(f"/v1/runs/{held.id}/logs/follow")) for held in (silent, brief, long)
    ]
    await kept.wait_for_followers(silent, brief, long)
    (tmp_path / "kept").rename(tmp_path / "away")
    await kept.succeed(silent, brief)
    # All its lines are in the store, so the stream ends.
    text = (await following[1]).text
    assert (text.count("event: line"), text.count("event: end")) == (1, 1)
    assert (await kept.get(brief, after=1))["ended"]
    await kept.print(long, "two\n")
    await kept.succeed(long)
    text = (await following[2]).text
    assert (text.count("event: line"), text.count("event: end")) == (2, 1)
    # Without lines in the store it is unknown whether there are kept ones: the stream stops and can be resumed.
    assert "event: end" not in (await following[0]).text
    (tmp_path / "away").rename(tmp_path / "kept")
    assert "event: end" in (await kept.client.get(f"/v1/runs/{silent.id}/logs/follow")).text


async def test_a_run_that_printed_nothing_has_an_empty_log(kept: Kept) -> None:
    held = await kept.printed()
    await kept.step()
    assert await kept.texts(held) == []
    await kept.refuse_url(held)


async def test_a_url_of_the_whole_log_in_a_bucket(kept: Kept, where: str) -> None:
    held = await kept.printed("one\n", "two\n")
    # While the log is in the store there is no URL.
    await kept.refuse_url(held)
    await kept.step()
    if not where.startswith("s3://"):
        await kept.refuse_url(held)
        assert await kept.texts(held) == ["one\n", "two\n"]
        return
    found = await kept.get(held, url=True)
    assert found["items"] == []
    async with httpx2.AsyncClient(timeout=DEADLINE_SECONDS) as browser:
        whole = await browser.get(found["url"])
    lines = [json.loads(line) for line in gzip.decompress(whole.content).splitlines()]
    assert lines == (await kept.get(held))["items"]


async def test_many_logs_leave_the_store_in_several_steps(kept: Kept) -> None:
    held = await kept.start(*(a_run() for _ in range(80)))
    for one in held:
        await kept.print(one, f"{one.id}\n")
    await kept.succeed(*held)
    assert await kept.step() > 0
    assert len(await kept.store.logged_runs(None, 100)) == 16
    await kept.step()
    assert await kept.store.logged_runs(None, 100) == []
    for one in held[::20]:
        assert await kept.texts(one) == [f"{one.id}\n"]


async def test_a_log_that_was_put_but_not_deleted_is_moved_again(kept: Kept) -> None:
    held = await kept.printed("one\n")
    [view] = await kept.store.runs([held.id])
    assert view is not None
    await kept.logs.put([(view, pack(await kept.store.log(held.id, 0, 10)))])
    await kept.step()
    assert await kept.in_store(held) == []
    assert await kept.texts(held) == ["one\n"]


async def test_a_long_log_is_moved_together_with_short_ones(kept: Kept) -> None:
    short, long = await kept.start(a_run(), a_run())
    texts = [f"{number}\n" for number in range(450)]
    await kept.print(short, "one\n")
    await kept.print(long, *texts)
    await kept.succeed(short, long)
    await kept.step()
    assert await kept.store.logged_runs(None, 10) == []
    assert await kept.texts(short) == ["one\n"]
    assert await kept.texts(long, limit=1_000) == texts
    assert (kept.keeper.moved, kept.keeper.failed, kept.keeper.waiting) == (2, 0, 0)


@pytest.mark.parametrize("where", ["folder"], indirect=True)
async def test_the_keeper_pauses_in_proportion_to_its_work_and_less_when_it_is_behind(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.features.logs.service._MAX_LOGS", 2)
    held = await kept.start(*(a_run() for _ in range(9)))
    for one in held:
        await kept.print(one, "one\n")
    await kept.succeed(*held)
    await kept.step()
    clock = kept.service.clock
    # Each reading of the clock is a second later. A step reads it three times, so it takes two seconds.
    ticks = iter(range(0, 10_000 * SECOND, SECOND))
    monkeypatch.setattr(clock, "monotonic", lambda: next(ticks))
    assert await kept.step() == 8 * SECOND
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + 10 * MINUTE)
    assert await kept.step() == 2 * SECOND
    kept.pressed = True
    assert await kept.step() == 18 * SECOND


async def test_the_logs_of_another_store_are_left_alone(store: RuntimeStore, where: str, tmp_path: Path) -> None:
    identity = "one"

    async def identify() -> str:
        return identity

    logs, copied = (RunLogs(run_logs(where, tmp_path).blobs, identify) for _ in range(2))
    kept, other = Kept(store, logs), Kept(store, copied)
    held = await kept.printed("one\n")
    await kept.step()
    old = "logs/default/standard/2026-01-05/a.jsonl.gz"
    await logs.blobs.put(old, b"x")
    identity = "two"
    assert await other.texts(held) == ["one\n"]
    again = await other.printed("again\n")
    await other.step()
    assert "has the logs of another store" in other.keeper.trouble
    assert await other.in_store(again) == ["again\n"]
    assert old in await other.names()
    assert (await other.client.delete(f"/v1/jobs/{held.id}", params={"purge": True})).status_code == 503
    found = await check_run_logs(copied)
    assert found.level is Level.PROBLEM
    assert "another store" in found.says
    # The operator makes this store the owner of the folder.
    await copied.blobs.delete(["logs-of"])
    await other.rest()
    assert other.keeper.trouble == ""
    assert await other.in_store(again) == []
    assert old not in await other.names()
    for one in (kept, other):
        await one.client.aclose()
        await one.logs.blobs.close()


async def test_a_keeper_without_the_first_shard_moves_no_logs(store: RuntimeStore, where: str, tmp_path: Path) -> None:
    logs = run_logs(where, tmp_path)
    other = Kept(store, logs, owned={3: 1})
    async with other.client:
        held = await other.printed("one\n")
        await other.step()
        assert await other.in_store(held) == ["one\n"]
    await logs.blobs.close()


async def test_purging_a_run_deletes_its_kept_log(kept: Kept) -> None:
    held = await kept.printed("one\n")
    await kept.step()
    assert await kept.names()
    assert (await kept.client.delete(f"/v1/jobs/{held.id}", params={"purge": True})).status_code == 200
    assert not await kept.names()


async def test_kept_logs_are_deleted_by_day(kept: Kept) -> None:
    held = await kept.printed("one\n")
    await kept.step()
    # Not the current time, because midnight may pass during the test.
    [view] = await kept.store.runs([held.id])
    assert view is not None
    assert view.finished_at is not None
    now = view.finished_at

    async def forget(keep: Micros) -> int:
        return sum([gone async for gone in kept.logs.forget(now, lambda folder, name: keep)])

    assert await forget(0) == 0
    assert await kept.texts(held) == ["one\n"]
    assert await forget(-2 * DAY) == 1
    assert await kept.texts(held) == []
    assert await kept.logs.blobs.folders("logs") == []


async def test_the_keeper_deletes_old_days_and_nothing_else(kept: Kept) -> None:
    others = ["history/2026-01-05/c", "logs/default/2026-01-05/d", "logs/default/standard/kept-by-hand/b"]
    for name in (*others, "logs/default/standard/2026-01-05/a.jsonl.gz"):
        await kept.logs.blobs.put(name, b"x")
    held = await kept.printed("one\n")
    await kept.rest()
    assert [name for name in await kept.names("") if held.id not in name] == others
    assert await kept.texts(held) == ["one\n"]


async def test_a_tenant_may_have_its_own_retention_of_logs(kept: Kept) -> None:
    quotas = {"logDays": 400, "logBytesPerDay": 1_000_000}
    put = await kept.client.put("/v1/tenants", json={"name": "a/b", "quotas": quotas})
    assert put.json()["quotas"] == quotas
    now = await kept.store.now()
    days = [f"{to_datetime(now - ago * DAY):%Y-%m-%d}" for ago in (20, 100, 500)]
    for tenant in ("a=2fb", "other"):
        for day in days:
            await kept.logs.blobs.put(f"logs/{tenant}/standard/{day}/x.jsonl.gz", b"x")
    await kept.rest()
    assert await kept.logs.blobs.folders("logs/a=2fb/standard") == sorted(days[:2])
    assert await kept.logs.blobs.folders("logs/other/standard") == days[:1]


async def test_logs_of_longer_retention_classes_are_kept_as_long_as_their_runs(kept: Kept) -> None:
    now = await kept.store.now()
    days = {ago: f"{to_datetime(now - ago * DAY):%Y-%m-%d}" for ago in (3, 50, 100, 3_000)}
    for name in ("standard", "short", "long", "audit"):
        for day in days.values():
            await kept.logs.blobs.put(f"logs/default/{name}/{day}/x.jsonl.gz", b"x")
    await kept.rest()
    left = {name: await kept.logs.blobs.folders(f"logs/default/{name}") for name in ("standard", "long", "audit")}
    assert left == {"standard": [days[3]], "long": [days[50], days[3]], "audit": [days[100], days[50], days[3]]}
    assert await kept.logs.blobs.folders("logs/default") == ["audit", "long", "standard"]


async def test_a_log_is_kept_in_the_folder_of_its_retention_class(kept: Kept) -> None:
    await kept.store.put_tenant(Tenant(name="bank", quotas=Quotas(retention="long")), Author("test"))
    policy = a_policy(retention="audit")
    runs = await kept.start(a_run(policy=policy), a_run(tenant="bank"), a_run(tenant="bank", policy=policy), a_run())
    for held in runs:
        await kept.print(held, f"{held.id}\n")
    await kept.succeed(*runs)
    await kept.step()
    classes = {name.rpartition("/")[2][:32]: name.split("/")[2] for name in await kept.names()}
    assert sorted(classes.values()) == ["audit", "audit", "long", "standard"]
    # Logs stay readable when the class of the tenant changes.
    await kept.store.put_tenant(Tenant(name="bank", quotas=Quotas(retention="short")), Author("test"))
    for held in runs:
        assert await kept.texts(held) == [f"{held.id}\n"]


async def test_a_tenant_reads_its_own_kept_logs_only(store: RuntimeStore, where: str, tmp_path: Path) -> None:
    logs = run_logs(where, tmp_path)
    kept = Kept(store, logs)
    guarded = Service(auth=True, store=store, run_logs=logs)
    [held] = await kept.start(a_run(tenant="a/b"))
    await kept.print(held, "mine\n")
    await kept.succeed(held)
    await kept.step()
    with_url = 200 if where.startswith("s3://") else 409
    for tenant, status, status_of_url in (("a/b", 200, with_url), ("other", 404, 404)):
        async with guarded.client(await guarded.key(Role.VIEWER, tenant)) as client:
            for query, expected in (({}, status), ({"url": True}, status_of_url)):
                assert (await client.get(f"/v1/runs/{held.id}/logs", params=query)).status_code == expected
    await kept.client.aclose()
    await logs.blobs.close()


@memory_only
async def test_logs_stay_in_the_store_until_the_bucket_exists(store: RuntimeStore, tmp_path: Path) -> None:
    server = shared_s3()
    name = f"not-made-yet-{uuid.uuid4().hex}"
    logs = run_logs(bucket_address(server, name), tmp_path)
    kept = Kept(store, logs)
    held = await kept.printed("one\n")
    pauses = [await kept.step() for _ in range(8)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == MINUTE
    assert "NoSuchBucket" in kept.keeper.trouble
    assert name in kept.keeper.trouble
    assert await kept.in_store(held) == ["one\n"]
    assert await kept.texts(held) == ["one\n"]
    found = await check_run_logs(logs)
    assert (found.check, found.level) == ("run logs", Level.PROBLEM)
    assert name in found.says
    server.bucket(name)
    await kept.step()
    assert kept.keeper.trouble == ""
    assert await kept.in_store(held) == []
    assert await kept.texts(held) == ["one\n"]
    assert (await check_run_logs(logs)).level is Level.OK
    await kept.client.aclose()
    await logs.blobs.close()


@memory_only
async def test_logs_stay_in_the_store_while_the_s3_server_is_stopped(store: RuntimeStore, tmp_path: Path) -> None:
    server = S3(tmp_path)
    started(server)
    try:
        logs = run_logs(new_bucket(server), tmp_path)
        kept = Kept(store, logs)
        before = await kept.printed("before\n")
        await kept.step()
        server.stop()
        held = await kept.printed("one\n")
        await kept.step()
        assert kept.keeper.trouble
        assert await kept.texts(held) == ["one\n"]
        answer = await kept.client.get(f"/v1/runs/{before.id}/logs")
        assert (answer.status_code, answer.json()["title"]) == (503, "Logs unavailable")
        assert answer.headers["retry-after"] == "5"
        assert "127.0.0.1" not in answer.text
        started(server)

        async def has_left_the_store() -> bool:
            # The first step may use a connection that the stop has broken.
            await kept.step()
            return not await kept.in_store(held)

        await eventually(has_left_the_store)
        assert await kept.texts(held) == ["one\n"]
        assert await kept.texts(before) == ["before\n"]
        # A read from a server that hangs times out. It takes a moment until all of its threads have stopped.
        kept.service.api.logs.kept_timeout = 1
        server.nodes[0].signal(signal.SIGSTOP)
        answers = [answer]

        async def times_out() -> bool:
            answers.append(await kept.client.get(f"/v1/runs/{before.id}/logs"))
            return answers[-1].status_code != 200

        await eventually(times_out)
        assert answers[-1].status_code == 503
        server.nodes[0].signal(signal.SIGCONT)
        await kept.client.aclose()
        await logs.blobs.close()
    finally:
        server.remove()


class Failing(FolderBlobs):
    """A folder in which deletes can be made to fail and writes to hang."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.deletes = True
        self.may_write, self.is_busy = asyncio.Event(), asyncio.Event()
        self.may_write.set()

    async def put_all(self, objects: Sequence[tuple[str, bytes]]) -> None:
        self.is_busy.set()
        await self.may_write.wait()
        await super().put_all(objects)

    async def delete(self, names: Collection[str]) -> None:
        if not self.deletes:
            raise BlobsUnavailable("nothing can be deleted here")
        await super().delete(names)


@pytest.fixture
async def failing(tmp_path: Path) -> AsyncIterator[Failing]:
    found = Failing(tmp_path)
    yield found
    await found.close()


@memory_only
async def test_logs_leave_the_store_even_if_old_ones_cannot_be_deleted(
    store: RuntimeStore, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(store, RunLogs(failing))
    # The pause after a step grows with its duration, so no time passes here.
    monkeypatch.setattr(kept.service.clock, "monotonic", lambda: 0)
    await failing.put("logs/default/standard/2026-01-05/a.jsonl.gz", b"x")
    failing.deletes = False
    for _ in range(4):
        held = await kept.printed("one\n")
        assert await kept.step() <= 2 * SECOND
        assert await kept.in_store(held) == []
        assert kept.keeper.trouble == ""
    await kept.client.aclose()
    await kept.keeper.stop()


@memory_only
async def test_the_keeper_stops_while_a_write_hangs(store: RuntimeStore, failing: Failing) -> None:
    kept = Kept(store, RunLogs(failing))
    held = await kept.start(*(a_run() for _ in range(30)))
    for one in held:
        await kept.print(one, "one\n")
    await kept.succeed(*held)
    failing.may_write.clear()
    await kept.keeper.start()
    await failing.is_busy.wait()
    await kept.keeper.stop()
    assert len(await kept.store.logged_runs(None, 100)) == 30
    failing.may_write.set()
    await kept.rest()
    assert await kept.store.logged_runs(None, 100) == []
    await kept.client.aclose()


@memory_only
async def test_lines_of_a_deleted_run_are_dropped_with_a_warning(
    store: RuntimeStore, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(store, RunLogs(failing))
    gone, held = await kept.printed("one\n"), await kept.printed("two\n")
    warnings = []
    monkeypatch.setattr(kept.keeper.log, "warning", lambda text, **more: warnings.append((text, more["runs"])))
    views = store.runs

    async def runs(ids: Sequence[RunId]) -> list[RunView | None]:
        return [None if run is not None and run.id == gone.id else run for run in await views(ids)]

    monkeypatch.setattr(store, "runs", runs)
    await kept.rest()
    await kept.step()
    assert await kept.store.logged_runs(None, 10) == []
    assert warnings == [("log lines of deleted runs dropped", 1)]
    assert len(await kept.names()) == 1
    assert held.id in (await kept.names())[0]
    await kept.client.aclose()


@memory_only
async def test_the_keeper_warns_before_waiting_logs_are_dropped(
    store: RuntimeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(store, RunLogs(FolderBlobs(tmp_path / "not there")))
    await kept.printed("one\n")
    now = kept.service.clock.now()
    warnings = []
    monkeypatch.setattr(kept.keeper.log, "warning", lambda text, **more: warnings.append(text))
    for days, times in ((5, 0), (6, 1)):
        monkeypatch.setattr(kept.service.clock, "now", lambda days=days: now + days * DAY)
        await kept.step()
        assert sum(text == "run logs will be lost soon" for text in warnings) == times
    assert kept.keeper.failed == 2
    assert 5 * DAY < kept.keeper.waiting < 7 * DAY
    await kept.client.aclose()
    await kept.logs.blobs.close()
