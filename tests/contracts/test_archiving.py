"""The archive: a run is pruned only after it was archived completely."""

from pathlib import Path

import msgspec
import pytest

from mainspring.config.archive import restore_archive
from mainspring.config.sections.storage import BlobsSection
from mainspring.config.servers.blobs import make_blobs
from mainspring.core.model.base.errors import Conflict
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, HOUR
from mainspring.core.model.runs.completion import complete_success
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.blobs import Blobs
from mainspring.core.ports.storage.upkeep import Retention
from mainspring.core.ports.upkeep.archive import ArchivedRun, ArchiveStore
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.features.archive import service as archive
from mainspring.features.archive.model import Manifest
from mainspring.features.archive.service import Archiver, list_manifests, read_archived
from mainspring.integrations.files.folder import FolderBlobs
from mainspring.stores.sqlite import SqliteStore
from tests.support.buckets import credentials_file, new_bucket, shared_s3
from tests.support.builders import a_policy, a_run
from tests.support.store_harness import Harness

pytestmark = pytest.mark.slow

KEPT = Retention(succeeded=7 * DAY, unsuccessful=7 * DAY, short=DAY, long=20 * DAY, audit=400 * DAY)


def make_archiver(harness: Harness, blobs: Blobs) -> Archiver:
    store = harness.store
    if not isinstance(store, ArchiveStore):
        pytest.skip("this store keeps nothing that could be archived")
    return Archiver(store, blobs, SystemClock(), lambda: {0}, lambda: False)


async def archive_and_prune(harness: Harness, archiver: Archiver) -> None:
    """Archive and prune until nothing is left, as the retention service does."""
    while True:
        retention, more = await archiver.step(KEPT)
        if not await harness.store.prune(retention, 100) and not more:
            return


async def end_some_runs(harness: Harness) -> list[RunView]:
    """Return the views of ten ended runs with different outcomes."""
    good = a_run(payload=b'{"order":1}', policy=a_policy(retention="long"), about=About(name="it", tags=("a", "b")))
    plain = [a_run(payload=b'"\\u00e9"') for _ in range(7)]
    bad, cancelled = a_run(policy=a_policy(retries=0)), a_run(delay=DAY)
    held = {run.id: run for run in await harness.start(good, *plain, bad)}
    await harness.succeed(*(held[run.id] for run in (good, *plain)))
    await harness.fail(held[bad.id])
    await harness.submit(cancelled)
    await harness.store.cancel([cancelled.id])
    ids = [run.id for run in (good, *plain, bad, cancelled)]
    return [view for view in await harness.store.runs(ids, payloads=True) if view is not None]


async def read_archive(blobs: Blobs) -> dict[str, RunView]:
    return {one.run.id: one.run for part in await list_manifests(blobs) async for one in read_archived(blobs, part)}


def without_live_fields(view: RunView) -> RunView:
    """Clear the fields that the archive does not keep."""
    return msgspec.structs.replace(view, progress=None, cancel_requested=False, session=None, target=None)


async def test_pruned_runs_are_in_the_archive(harness: Harness, tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    archiver = make_archiver(harness, blobs)
    views = await end_some_runs(harness)
    await harness.advance(10 * DAY)
    await archive_and_prune(harness, archiver)
    left = [view is not None for view in await harness.store.runs([view.id for view in views])]
    assert left == [True] + [False] * 9
    await harness.advance(30 * DAY)
    await archive_and_prune(harness, archiver)
    assert await harness.store.runs([view.id for view in views]) == [None] * 10
    there = await read_archive(blobs)
    assert {run: without_live_fields(view) for run, view in there.items()} == {
        view.id: without_live_fields(view) for view in views
    }
    parts = await list_manifests(blobs)
    assert sum(part.runs for part in parts) == 10
    assert all(part.complete for part in parts)
    ends = [(part.since, part.first_at or 0, part.last_at or 0, part.until - 1) for part in parts if part.runs]
    assert ends == [tuple(sorted(four)) for four in ends]
    [failed] = [one for part in parts async for one in read_archived(blobs, part) if one.run.state is RunState.FAILED]
    assert len(failed.attempts) == 1


async def test_no_run_is_pruned_while_the_archive_is_unavailable(harness: Harness, tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "later")
    archiver = make_archiver(harness, blobs)
    views = await end_some_runs(harness)
    await harness.advance(40 * DAY)
    await archive_and_prune(harness, archiver)
    assert None not in await harness.store.runs([view.id for view in views])
    assert "is not a folder" in archiver.trouble
    assert archiver.waiting >= 3
    (tmp_path / "later").mkdir()
    await archive_and_prune(harness, archiver)
    assert archiver.trouble == ""
    assert archiver.waiting == 0
    assert await harness.store.runs([view.id for view in views]) == [None] * 10
    assert len(await read_archive(blobs)) == 10


async def test_an_archiver_continues_where_another_one_stopped(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_MAX_RUNS", 2)
    blobs = FolderBlobs(tmp_path)
    make_archiver(harness, blobs)
    views = await end_some_runs(harness)
    await harness.advance(40 * DAY)
    for _ in range(100):
        # A new archiver for every file.
        retention, more = await make_archiver(harness, blobs).step(KEPT)
        await harness.store.prune(retention, 100)
        known = {view.id for view in await harness.store.runs([view.id for view in views]) if view is not None}
        assert known | set(await read_archive(blobs)) == {view.id for view in views}
        if not more:
            break
    assert len(await read_archive(blobs)) == 10
    assert sum(part.runs for part in await list_manifests(blobs)) == 10
    assert max(len(part.files) for part in await list_manifests(blobs)) >= 4


async def test_only_the_owner_of_shard_0_archives_and_the_others_wait_for_it(harness: Harness, tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    writes = make_archiver(harness, blobs)
    assert isinstance(harness.store, ArchiveStore)
    looks = Archiver(harness.store, blobs, SystemClock(), lambda: {1, 2}, lambda: False)
    views = await end_some_runs(harness)
    await harness.advance(40 * DAY)
    await archive_and_prune(harness, looks)
    assert None not in await harness.store.runs([view.id for view in views])
    while (await writes.step(KEPT))[1]:
        pass
    await archive_and_prune(harness, looks)
    assert await harness.store.runs([view.id for view in views]) == [None] * 10


async def test_an_archive_is_restored_into_a_database(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    blobs, into = FolderBlobs(tmp_path / "archive"), tmp_path / "read.db"
    archiver = make_archiver(harness, blobs)
    views = await end_some_runs(harness)
    await harness.advance(40 * DAY)
    await archive_and_prune(harness, archiver)
    assert await restore_archive(blobs, await list_manifests(blobs), None, into) == (10, 10)
    assert await restore_archive(blobs, await list_manifests(blobs), "default", into) == (10, 0)
    assert await restore_archive(blobs, await list_manifests(blobs), "nobody", into) == (0, 0)
    store = SqliteStore(into, SystemClock())
    await store.open()
    try:
        again = await store.runs([view.id for view in views], payloads=True)
        [failed] = [view for view in views if view.state is RunState.FAILED]
        attempts = await store.attempts(failed.id)
    finally:
        await store.close()
    assert [view and (view.id, view.state, view.payload, view.result, view.reason) for view in again] == [
        (view.id, view.state, view.payload, view.result, view.reason) for view in views
    ]
    assert len(attempts) == 1


async def test_a_changed_archive_file_is_rejected(harness: Harness, tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    archiver = make_archiver(harness, blobs)
    await end_some_runs(harness)
    await harness.advance(40 * DAY)
    await archive_and_prune(harness, archiver)
    [first, *_] = [file for part in await list_manifests(blobs) for file in part.files]
    await blobs.put(first.name, (await blobs.get(first.name) or b"")[:-1] + b"x")
    with pytest.raises(Conflict, match="different from what was written"):
        await read_archive(blobs)


async def test_hourly_archiving_misses_no_run(harness: Harness, tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    archiver = make_archiver(harness, blobs)
    made: set[str] = set()
    for _ in range(4):
        quick = [a_run(payload=b'"q"'), a_run(payload=b'"q"', policy=a_policy(retention="short"))]
        await harness.succeed(*await harness.start(*quick))
        made |= {run.id for run in quick}
        await harness.advance(9 * HOUR)
    for _ in range(2 * 24):
        await harness.advance(4 * HOUR)
        await archive_and_prune(harness, archiver)
        known = {view.id for view in await harness.store.runs([RunId(run) for run in made]) if view is not None}
        assert known | set(await read_archive(blobs)) == made
    assert set(await read_archive(blobs)) == made


async def test_a_run_that_ended_days_after_its_submission_is_archived_with_its_payload(
    harness: Harness, tmp_path: Path
) -> None:
    blobs = FolderBlobs(tmp_path)
    archiver = make_archiver(harness, blobs)
    runs = [a_run(payload=b'"slow"', policy=a_policy(retries=0, retention=name)) for name in ("", "short") * 3]
    held = await harness.start(*runs)
    for day in range(3):
        await harness.advance(DAY)
        await harness.succeed(*held[2 * day : 2 * day + 2])
    for _ in range(2 * 12):
        await harness.advance(12 * HOUR)
        await archive_and_prune(harness, archiver)
    there = await read_archive(blobs)
    assert [(there[run.id].task, there[run.id].payload, there[run.id].policy) for run in runs] == [
        ("greet", b'"slow"', run.policy) for run in runs
    ]


async def test_payload_and_result_with_line_breaks_are_archived_on_one_line(harness: Harness, tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    archiver = make_archiver(harness, blobs)
    [held] = await harness.start(a_run(payload=b'{\r\n  "order": 1\n}'))
    await harness.complete(complete_success(held, b"[\n1,\n2]"))
    await harness.advance(10 * DAY)
    await archive_and_prune(harness, archiver)
    [run] = (await read_archive(blobs)).values()
    assert (run.payload, run.result) == (b'{"order":1}', b"[1,2]")


async def test_archived_runs_are_read_in_batches_limited_in_bytes(harness: Harness, tmp_path: Path) -> None:
    make_archiver(harness, FolderBlobs(tmp_path))
    assert isinstance(harness.store, ArchiveStore)
    heavy = [a_run(payload=b'"%s"' % (b"x" * 100_000)) for _ in range(120)]
    await harness.succeed(*await harness.start(*heavy))
    await harness.advance(10 * DAY)
    [part] = [one for one in await harness.store.past_parts(KEPT) if await harness.store.archived_runs(one, None, 1, 1)]
    read: list[ArchivedRun] = []
    while more := await harness.store.archived_runs(part, read[-1] if read else None, 100, 1_000_000):
        assert len(more) <= 50
        read += more
    assert {one.run.id for one in read} == {run.id for run in heavy}


async def test_a_damaged_manifest_stops_only_its_retention_class(harness: Harness, tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    archiver = make_archiver(harness, blobs)
    assert isinstance(harness.store, ArchiveStore)
    good, other = a_run(), a_run(policy=a_policy(retention="short"))
    await harness.succeed(*await harness.start(good, other))
    await harness.advance(10 * DAY)
    for part in await harness.store.past_parts(KEPT):
        if part.kept_as == "succeeded":
            folder = Manifest(
                store=await harness.store.identity(), kept_as=part.kept_as, since=part.since, until=part.until
            ).folder
            await blobs.put(f"{folder}/manifest.json", b'{"format": 2}')
    await archive_and_prune(harness, archiver)
    assert [view is not None for view in await harness.store.runs([good.id, other.id])] == [True, False]
    assert "manifest.json is damaged, or was written by a newer version" in archiver.trouble


async def test_archiving_works_with_a_bucket(harness: Harness, tmp_path: Path) -> None:
    section = BlobsSection(credentials_file=str(credentials_file(tmp_path)))
    blobs = make_blobs(new_bucket(shared_s3()), "retention.archive", section)
    archiver = make_archiver(harness, blobs)
    try:
        views = await end_some_runs(harness)
        await harness.advance(40 * DAY)
        await archive_and_prune(harness, archiver)
        assert await harness.store.runs([view.id for view in views]) == [None] * 10
        assert set(await read_archive(blobs)) == {view.id for view in views}
    finally:
        await blobs.close()
