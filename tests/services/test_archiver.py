"""The archiver, alone and next to other archivers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, HOUR, Instant
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.ports.upkeep.archive import ArchivedRun, ArchivePart
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.features.archive import service as archive
from mainspring.features.archive.model import ROOT, Manifest
from mainspring.features.archive.retention import RetentionKeeper
from mainspring.features.archive.service import Archiver, compute_kept_since, list_manifests, read_archived
from mainspring.integrations.files.folder import FolderBlobs
from mainspring.stores.memory import MemoryStore
from tests.support.clock import ManualClock

NOW = 20_000 * DAY + 15 * HOUR
DAY_PAST = ArchivePart(kept_as="succeeded", since=19_990 * DAY, until=19_991 * DAY)


class Past:
    """A store with one past day of ten runs. ``meanwhile`` is called once while some of them are read."""

    def __init__(self, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        self.meanwhile = meanwhile
        self.runs = [
            RunView(
                id=RunId(f"{number:032x}"),
                state=RunState.SUCCEEDED,
                task="pay",
                queue="default",
                tenant="default",
                priority=5,
                attempt=1,
                due=DAY_PAST.since,
                created_at=DAY_PAST.since,
                finished_at=DAY_PAST.since + number,
            )
            for number in range(10)
        ]

    async def now(self) -> Instant:
        return NOW

    async def identity(self) -> str:
        return "0c"

    async def past_parts(self, retention: Retention) -> Sequence[ArchivePart]:
        return [DAY_PAST]

    async def archived_runs(
        self, part: ArchivePart, after: ArchivedRun | None, limit: int, size: int
    ) -> Sequence[ArchivedRun]:
        found = [run for run in self.runs if after is None or run.id > after.run.id][:limit]
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return [ArchivedRun(run=run) for run in found]


class Owner:
    def __init__(self) -> None:
        self.owned, self.pressed, self.stopped = {0}, False, False

    def archiver(self, past: Past, folder: Path) -> Archiver:
        return Archiver(past, FolderBlobs(folder), ManualClock(NOW), lambda: self.owned, lambda: self.pressed)


async def write_all(archiver: Archiver) -> None:
    while (await archiver.step(Retention()))[1]:
        pass


async def read_all(folder: Path) -> list[RunId]:
    blobs = FolderBlobs(folder)
    return [
        one.run.id for part in await list_manifests(blobs) if part.complete async for one in read_archived(blobs, part)
    ]


@pytest.mark.parametrize("why", ["owned", "stopped"])
async def test_an_archiver_that_lost_its_shard_or_is_stopped_writes_nothing(tmp_path: Path, why: str) -> None:
    owner = Owner()

    async def stop_writing() -> None:
        owner.owned, owner.stopped = (set(), False) if why == "owned" else ({0}, True)

    retention, more = await owner.archiver(Past(stop_writing), tmp_path).step(Retention(), lambda: owner.stopped)
    assert [batch async for batch in FolderBlobs(tmp_path).list(ROOT)] == []
    assert not more
    assert retention.kept_since["succeeded"] == DAY_PAST.since


async def test_the_retention_keeper_stops_without_finishing_its_archive_file(tmp_path: Path) -> None:
    clock, stopping = ManualClock(NOW), asyncio.Event()

    async def stopped() -> None:
        stopping.set()
        await asyncio.sleep(0)

    past = Past(stopped)
    keeper = RetentionKeeper(
        MemoryStore(clock, 4),
        LocalWakeups(),
        clock,
        Random(0),
        Retention(),
        archiver=Owner().archiver(past, tmp_path),
    )
    await keeper.start()
    await stopping.wait()
    await keeper.stop()
    assert [batch async for batch in FolderBlobs(tmp_path).list(ROOT)] == []


async def test_an_archiver_under_pressure_writes_the_runs_it_has_read_and_reads_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_READ_RUNS", 3)
    owner = Owner()

    async def press() -> None:
        owner.pressed = True

    archiver = owner.archiver(Past(press), tmp_path)
    await write_all(archiver)
    [part] = await list_manifests(FolderBlobs(tmp_path))
    assert (part.runs, part.complete) == (3, False)
    owner.pressed = False
    await write_all(archiver)
    assert len(await read_all(tmp_path)) == 10


@pytest.mark.parametrize("runs", [2, 4, 10])
async def test_an_archiver_that_resumes_after_another_one_wrote_keeps_the_archive_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    past = Past()

    async def write_concurrently() -> None:
        monkeypatch.setattr(archive, "_MAX_RUNS", runs)
        await write_all(Owner().archiver(Past(), tmp_path))

    monkeypatch.setattr(archive, "_MAX_RUNS", 4)
    late_archiver = Owner().archiver(past, tmp_path)
    await late_archiver.step(Retention())
    past.meanwhile = write_concurrently
    await late_archiver.step(Retention())
    assert await read_all(tmp_path) == [run.id for run in past.runs]
    # The next archiver finds it complete, although the late one wrote last.
    retention, more = await Owner().archiver(past, tmp_path).step(Retention())
    assert not more
    assert retention.kept_since["succeeded"] == (NOW - 7 * DAY) // DAY * DAY


async def test_concurrent_archivers_keep_the_archive_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_MAX_RUNS", 2)
    past = Past()
    await asyncio.gather(*(write_all(Owner().archiver(past, tmp_path)) for _ in range(3)))
    assert await read_all(tmp_path) == [run.id for run in past.runs]


def test_a_week_and_its_first_day_have_different_folders() -> None:
    day = Manifest(store="0c", kept_as="long", since=0, until=DAY)
    week = msgspec.structs.replace(day, until=7 * DAY)
    assert (day.folder, week.folder) == ("runs/0c/long/1970-01-01", "runs/0c/long/1970-01-01_7d")


def test_a_day_is_kept_until_its_last_run_is_past_retention() -> None:
    kept = compute_kept_since(Retention(succeeded=7 * DAY, short=DAY), NOW, {"short": 5 * DAY})
    assert kept["succeeded"] == 19_993 * DAY
    assert kept["short"] == 5 * DAY
