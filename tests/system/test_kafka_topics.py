"""Records of a foreign producer, kcat, become jobs on a real Kafka: by the page that describes it."""

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.admin import KafkaAdmin
from tests.support.doc_blocks import write_blocks
from tests.support.processes import ROOT, START_SECONDS, free_port
from tests.support.waiting import eventually

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]

PAGE = ROOT / "docs/guides/kafka-topics.md"
#: All that the page uses. Others use the same server.
TOPICS = ("encoding-jobs", "status_updates", "job_events", "cancel_requests")


class Site:
    """A folder with the files of the page, a node that runs there, and kcat."""

    def __init__(self, folder: Path, kafka: str) -> None:
        self.folder = folder
        self._kafka = kafka.removeprefix("kafka://")
        self._admin = KafkaAdmin(parse_kafka(kafka, "test"))
        self._suffix = uuid4().hex
        write_blocks(PAGE, folder)
        (folder / "mainspring.toml").write_text("\n".join(self.blocks("toml")))
        (folder / "scripts").mkdir()

    def blocks(self, language: str) -> list[str]:
        """The page's blocks, with this server and topics of their own."""
        found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        return [self._here(block) for block in found]

    def topic(self, name: str) -> str:
        return f"{name}-{self._suffix}"

    def _here(self, text: str) -> str:
        for name in TOPICS:
            text = re.sub(rf"\b{name}\b(?! =)", self.topic(name), text)
        return text.replace("127.0.0.1:9092", self._kafka)

    def start(self) -> "subprocess.Popen[bytes]":
        environment = os.environ | {
            "MAINSPRING_STORE": "mainspring.db",
            "MAINSPRING_PORT": str(free_port()),
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{self.folder}",
        }
        with (self.folder / "up.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "mainspring", "up", "encoding:app", "--scripts", "scripts"],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
            )

    async def run(self, command: str, given: str = "") -> str:
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", command, cwd=self.folder, stdin=-1, stdout=-1, stderr=-1
        )
        output, errors = await process.communicate(given.encode())
        assert process.returncode == 0, (command, output, errors)
        return output.decode()

    async def send(self, topic: str, *values: object, key: str = "k") -> None:
        lines = "".join(f"{key}|{json.dumps(value)}\n" for value in values)
        await self.run(f"kcat -P -b {self._kafka} -t {self.topic(topic)} -K '|'", lines)

    async def is_reading(self) -> bool:
        """Whether the node has made its topics, and its sinks follow the events: new ones begin with the next event."""
        if not await self._has(f"{self.topic('cancel_requests')}-dead"):
            return False
        with closing(sqlite3.connect(f"file:{self.folder / 'mainspring.db'}?mode=ro", uri=True)) as store:
            readers = {name for (name,) in store.execute("SELECT reader FROM outbox_cursor")}
        return {"events:kafka", "events:status_updates"} <= readers

    async def _has(self, topic: str) -> bool:
        return topic in await self._admin.partitions([topic])

    async def read(self, topic: str, form: str = "") -> list[str]:
        if not await self._has(topic):
            return []
        return (await self.run(f"kcat -C -b {self._kafka} -t {topic} -e -q {form}")).splitlines()

    async def statuses(self) -> dict[str, list[str]]:
        """The statuses of each job, in order."""
        found = defaultdict(list)
        for line in await self.read(self.topic("status_updates")):
            message = json.loads(line)
            found[message["job_id"]].append(message["status"])
        return found

    def log(self) -> str:
        return (self.folder / "up.log").read_text()[-4_000:]


@pytest.fixture
async def site(address_of: Callable[[str], str], tmp_path: Path) -> AsyncIterator[Site]:
    address_of("kcat")
    site = Site(tmp_path, address_of("kafka"))
    node = site.start()

    async def is_reading() -> bool:
        assert node.poll() is None, site.log()
        return await site.is_reading()

    await eventually(is_reading, site.log, deadline=START_SECONDS)
    yield site
    node.terminate()
    await asyncio.to_thread(node.wait)


async def test_the_commands_of_the_page_make_jobs_in_order_and_publish_their_status(site: Site) -> None:
    send, read_output, read_dead, read_status = [block for block in site.blocks("sh") if "mainspring up" not in block]
    await site.run(send)

    async def published() -> bool:
        found = {job: statuses[-2:] for job, statuses in (await site.statuses()).items()}
        return found == {name: ["running", "success"] for name in ("e-1", "e-2", "e-3", "e-4")}

    await eventually(published, site.log, deadline=START_SECONDS)
    _, output, dead, status = site.blocks("(?:json|text)")
    assert await site.run(read_output) == output
    assert (site.folder / "encoded/video-8.txt").read_text() == "4K of s3://raw/8.mov\n"
    # Where the topic has its partitions from is a matter of the server.
    place = re.compile(r'"partition":\d+,"offset":\d+')
    assert place.sub("", await site.run(read_dead)) == place.sub("", dead)
    # The partitions of a topic are read in any order, and a job that waits for its key is queued first.
    keys = {json.loads(line)["status"]: json.loads(line).keys() for line in (await site.run(read_status)).splitlines()}
    for shown in map(json.loads, status.splitlines()):
        assert keys[shown["status"]] == shown.keys()
    events = [json.loads(line) for line in await site.read("job-events")]
    runs = {json.loads(line)["run_id"] for line in await site.read(site.topic("status_updates"))}
    types = {run: [event["type"] for event in events if event.get("subject") == run] for run in runs}
    assert len(types) == 4
    assert all(found[0] == "job.submitted" and found[-1] == "run.succeeded" for found in types.values())


async def test_job_events_and_cancel_requests_of_a_foreign_producer(site: Site) -> None:
    later = {"schedule_type": "future", "schedule_time": "2099-01-22T02:00:00Z", "payload": {"script": "a.sh"}}
    # All have the same key: only the records of one partition are in order.
    await site.send("job_events", {"job_id": "job_1"} | later, {"job_id": "job_2"} | later)
    await site.send("job_events", {"job_id": "job_2", "action": "update", "schedule_time": "2099-02-01T00:00:00Z"})
    await site.send("job_events", {"job_id": "job_404", "action": "update", "max_retries": 1})
    dead = f"{site.topic('job_events')}-dead"

    async def refused() -> bool:
        return len(await site.read(dead)) == 1

    await eventually(refused, site.log, deadline=START_SECONDS)
    await site.send("cancel_requests", {"job_id": "job_1"})

    async def cancelled() -> bool:
        return await site.statuses() == {"job_1": ["cancelled"]}

    await eventually(cancelled, site.log, deadline=START_SECONDS)
    [problem] = await site.read(dead, "-f '%h\\n'")
    assert "there is no job 'job_404'" in problem
