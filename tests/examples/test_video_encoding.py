"""The video encoding example, started as its README shows."""

import re
import zlib
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest

from examples.video_encoding.encoder import FRAME, STEPS
from mainspring import Mainspring
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.catalog import RunFilter
from tests.support.example import commands_of, run_example, run_on_broker

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("examples")]


async def test_uploads_are_encoded_in_order_by_a_fleet_that_grows(tmp_path: Path) -> None:
    output = await run_example("video_encoding", tmp_path)
    assert "8 uploads have made 32 jobs" in output
    assert "the load asks for" in output
    [(encoded, workers)] = re.findall(r"^(\d+) encoded by (\d+) workers", output, re.MULTILINE)
    assert int(encoded) >= 48, output
    assert int(workers) >= 2, output
    assert "encode" in await commands_of("video_encoding", tmp_path)
    runs = await load_runs(tmp_path / "video_encoding.db")
    assert len(runs) == int(encoded)
    assert {run.state for run in runs} == {RunState.SUCCEEDED}
    videos: defaultdict[str, list[RunView]] = defaultdict(list)
    for run in runs:
        videos[run.policy.ordering_key].append(run)
    for renditions in videos.values():
        renditions.sort(key=lambda run: run.started_at or 0)
        assert [run.priority for run in renditions] == [1, 2, 3, 4]
    bucket = tmp_path / "video_encoding.bucket"
    for video in videos:
        raw = (bucket / "raw" / video).read_bytes()
        for resolution, step in STEPS.items():
            kept = b"".join(raw[begin : begin + FRAME : step] for begin in range(0, len(raw), FRAME))
            assert zlib.decompress((bucket / "encoded" / video / resolution).read_bytes()) == kept
        # One after the other: each file is at least the encoding time of the later one after the earlier one.
        written = [(bucket / "encoded" / video / resolution).stat().st_mtime for resolution in STEPS]
        assert all(after - before >= 0.019 * len(raw) / FRAME for before, after in pairwise(written))
    # The first attempt of some runs crashes.
    assert sum(run.attempt == 2 for run in runs) == int(output.split(" were tried again")[0].rsplit(" ", 1)[1])


@pytest.mark.postgres
async def test_kafka_can_dispatch_the_jobs(
    tmp_path: Path, postgres_database: str, address_of: Callable[[str], str]
) -> None:
    topic = f"encoding-{uuid4().hex}"
    broker = f"{address_of('kafka')}/?topics={topic}&retries={topic}-retry"
    output = await run_on_broker("video_encoding", tmp_path, postgres_database, broker)
    assert " encoded by 2 workers" in output, output


async def load_runs(store: Path) -> list[RunView]:
    async with Mainspring(str(store)) as app:
        catalog = (await app.runtime()).store
        listed = await catalog.list_runs(RunFilter(tenant="default"), None, 1_000)
        return [run for run in await catalog.runs([run.id for run in listed.items]) if run is not None]
