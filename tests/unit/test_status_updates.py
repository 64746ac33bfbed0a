"""Short messages on the status of runs."""

import msgspec
import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.events.events import RunFacts, compose, subject_of_run
from mainspring.integrations.kafka.status_updates import compose_status_update, read_status_topic

NOW = 1_790_000_000 * SECOND
TIME = "2026-09-21T14:13:20Z"
RUN = RunId("019a8c4b6f2c70008042b1c2d3e4f506")
JOB = JobId("019a8c4b6f2c70008042b1c2d3e4f400")


def messages(kind: str, facts: RunFacts) -> list[dict[str, object]]:
    events = compose("/s", kind, [RUN], {RUN: subject_of_run(facts)}, position="1", at=NOW, tenant="default")
    return [msgspec.json.decode(update[1]) for event in events if (update := compose_status_update(event))]


@pytest.mark.parametrize(
    ("kind", "status", "times"),
    [
        ("run.queued", "queued", set()),
        ("run.started", "running", {"start_time"}),
        ("run.succeeded", "success", {"end_time"}),
        ("run.cancelled", "cancelled", {"end_time"}),
        ("run.skipped", "skipped", {"end_time"}),
        ("run.retried", "queued", set()),
        ("run.released", "queued", set()),
        ("run.lost", "queued", set()),
    ],
)
def test_each_change_of_status_is_one_message(kind: str, status: str, times: set[str]) -> None:
    [message] = messages(kind, RunFacts(id=RUN, task="encode", queue="video"))
    expected = {"job_id": RUN, "run_id": RUN, "status": status, "modified_time": TIME}
    assert message == expected | dict.fromkeys(times, TIME)


def test_a_failure_is_one_message_with_its_error_and_attempt() -> None:
    facts = RunFacts(
        id=RUN, task="encode", queue="video", job_id=JOB, ended=True, attempt=4, reason="error", error="no disk"
    )
    [message] = messages("run.failed", facts)
    assert message == {
        "job_id": JOB,
        "run_id": RUN,
        "status": "failed",
        "end_time": TIME,
        "modified_time": TIME,
        "attempt_number": 4,
        "error_message": "no disk",
    }


def test_a_job_that_another_program_named_has_that_name() -> None:
    facts = RunFacts(id=RUN, task="encode", queue="video", tags=("4K", "job:e-1"))
    subject = subject_of_run(facts)
    [event] = compose("/s", "run.started", [RUN], {RUN: subject}, position="1", at=NOW, tenant="default")
    update = compose_status_update(event)
    assert update is not None
    key, message = update
    assert key == "e-1"
    assert msgspec.json.decode(message)["job_id"] == "e-1"
    assert msgspec.json.decode(message)["run_id"] == RUN


@pytest.mark.parametrize("kind", ["run.submitted", "run.cancel_requested", "dead_letters.opened", "unknown"])
def test_other_changes_have_no_message(kind: str) -> None:
    assert messages(kind, RunFacts(id=RUN, task="encode", queue="video")) == []


def test_the_address_names_a_topic() -> None:
    found = read_status_topic("kafka://a/status_updates?partitions=3", "events.status_updates")
    assert (found.name, found.partitions) == ("status_updates", 3)
    for wrong in ("kafka://a", "kafka://a/a b", "redis://a/0", "kafka://a/t?partitions=0"):
        with pytest.raises(Invalid) as caught:
            read_status_topic(wrong, "events.status_updates")
        assert caught.value.field == "events.status_updates"
