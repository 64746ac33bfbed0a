"""The distributed cron example, started as its README shows."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from examples.distributed_cron import app, rehearsal
from examples.distributed_cron.application import DATACENTERS
from mainspring import Mainspring
from mainspring.core.model.schedules.schedule import CronSchedule
from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.admin import KafkaAdmin
from tests.support.example import commands_of, run_example

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("examples")]


async def test_every_tick_happens_once_in_every_data_center_though_the_leader_is_killed(tmp_path: Path) -> None:
    output = await run_example("distributed_cron", tmp_path)
    assert "was killed\ncontroller-" in output
    assert output.count("0 missing, 0 twice") == 3, output
    answers = await commands_of("distributed_cron", tmp_path)
    for place in DATACENTERS:
        assert place in answers
        ticks = (tmp_path / "distributed_cron.sites" / place / "metrics").read_text().split()
        assert len(ticks) == len(set(ticks)) >= 1


async def test_a_coordinator_can_elect_the_leader(tmp_path: Path, address_of: Callable[[str], str]) -> None:
    output = await run_example(
        "distributed_cron", tmp_path, MAINSPRING_COORDINATION=f"{address_of('etcd')}/{tmp_path.name}"
    )
    assert output.count("0 missing, 0 twice") == 3, output


@pytest.mark.postgres
async def test_kafka_can_dispatch_the_jobs_with_a_topic_for_each_data_center(
    tmp_path: Path, postgres_database: str, address_of: Callable[[str], str]
) -> None:
    address = address_of("kafka")
    admin, newcomer = KafkaAdmin(parse_kafka(address, "test")), f"newcomer-{uuid4().hex}"
    topics = [f"cron-jobs-{place}" for place in DATACENTERS]
    # Topics keep the messages of earlier tests. A new group lags by all of them.
    before = {topic: await admin.lag(newcomer, [topic]) for topic in topics}
    output = await run_example(
        "distributed_cron",
        tmp_path,
        MAINSPRING_STORE=postgres_database,
        MAINSPRING_DISPATCH_BROKER=f"{address}/?topics={{queue}}-{{datacenter}}",
    )
    assert output.count("0 missing, 0 twice") == 3, output
    async with Mainspring(postgres_database) as maintenance:
        group = f"mainspring.{await (await maintenance.runtime()).store.identity()}.cron-jobs"
    messages = {topic: await admin.lag(newcomer, [topic]) for topic in topics}
    # How many there are depends on how soon the topics exist: until then workers take runs from the store. On a busy
    # machine a topic can come too late for this short example.
    assert sum(messages.values()) > sum(before.values()), (before, messages)
    left = {topic: await admin.lag(group, [topic]) for topic in topics}
    # Workers read messages. On a busy machine the example can end before every worker has its partitions.
    assert any(left[topic] < messages[topic] for topic in topics), (left, messages)


def test_the_application_and_its_rehearsal_declare_the_same_schedules() -> None:
    times = {
        spec.name: spec.schedule.expression for spec, _ in app.schedules() if isinstance(spec.schedule, CronSchedule)
    }
    assert times == {
        "clear_cache": "0 0 * * * *",
        "export_metrics": "0 */5 * * * *",
        "collect_garbage": "0 0 3 * * *",
    }
    assert {spec.name for spec, _ in rehearsal.schedules()} == set(times)
    assert all(spec.datacenters == DATACENTERS for spec, _ in app.schedules())
