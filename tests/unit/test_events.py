"""Published events: every kind that a store writes has a type, and each event is a CloudEvent."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId, RunId, SessionId
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.events.events import (
    DROPPED,
    KINDS,
    PARTITIONS,
    Event,
    RunFacts,
    Subject,
    Topic,
    compose,
    dropped,
    id_of_worker,
    subject_of_run,
    worker_of_id,
)
from mainspring.core.model.events.webhooks import QUEUE, Webhook, read_webhooks
from tests.support.builders import a_run

ROOT = Path(__file__).parents[2]
NOW = 1_800_000_000 * SECOND + 123
_WRITTEN = re.compile(r"""['"]((?:run|job|budget|dead_letters|worker|dependency)\.[a-z_]+)['"]""")


def composed(kind: str, *runs: RunId, **facts: Any) -> list[Event]:
    subjects: dict[str, Subject] = {
        run: subject_of_run(RunFacts(id=run, task='a"b', queue="default", **facts)) for run in runs
    }
    return list(compose("/mainspring/x", kind, runs, subjects, position="7", at=NOW, tenant="default"))


def test_every_kind_that_a_store_writes_can_be_published() -> None:
    written = set()
    for path in [*(ROOT / "src/mainspring/stores").rglob("*.sql")]:
        written |= set(_WRITTEN.findall(path.read_text()))
    assert {"run.submitted", "worker.lost", "dependency.resolved"} <= written <= KINDS.keys()


def test_the_reference_lists_every_type_with_its_topic_and_description() -> None:
    page = (ROOT / "docs/reference/events.md").read_text()
    listed = re.findall(r"^\| `([a-z_.]+)` \| `([a-z-]+)` \| (\w+) \| (.*?) \|$", page, re.MULTILINE)
    dropped_says = next((says for name, _, _, says in listed if name == DROPPED), "is not listed")
    known = [(name, str(kind.topic), kind.subject, kind.says) for kind in KINDS.values() for name in kind.types]
    assert sorted(listed) == sorted([*known, (DROPPED, str(Topic.JOBS), "none", dropped_says)])
    for topic, partitions in PARTITIONS.items():
        assert f"| `{topic}` | {partitions} |" in page


def test_an_event_is_json_with_the_required_cloudevents_attributes() -> None:
    job = JobId(a_run().id)
    for kind in KINDS:
        run = a_run().id
        for event in composed(kind, run, job_id=job, scheduled_at=NOW, ended=True, reason='"', error="\n"):
            body = json.loads(event.body)
            assert body["specversion"] == "1.0"
            assert (body["id"], body["type"]) == (event.id, event.type)
            assert body["source"] == "/mainspring/x"
            assert body["subject"] in (run, str(worker_of_id(run)))
            assert body["time"] == "2027-01-15T08:00:00.000123Z"


def test_the_key_of_an_event_is_its_job_or_else_its_run() -> None:
    run, job = a_run().id, JobId(a_run().id)
    assert composed("run.started", run)[0].key == run
    assert composed("run.started", run, job_id=job)[0].key == job


def test_event_ids_depend_on_the_row_alone() -> None:
    runs = [a_run().id for _ in range(3)]
    first, again = composed("run.failed", *runs), composed("run.failed", *runs)
    assert first == again
    assert len({event.id for event in first}) == 6
    later = list(compose("/mainspring/x", "run.failed", runs, {}, position="7", at=NOW + 1, tenant="default"))
    assert not {event.id for event in first} & {event.id for event in later}


def test_only_an_unsuccessful_outcome_has_an_error() -> None:
    run = a_run().id
    assert "error" not in json.loads(composed("run.succeeded", run, ended=True, error="e")[0].body)["data"]
    assert json.loads(composed("run.dead", run, ended=True)[0].body)["type"] == "run.dead", (
        "a kind that only a newer version knows"
    )
    assert json.loads(composed("run.failed", run, ended=True, error="e")[0].body)["data"]["error"] == "e"


def test_a_worker_has_an_id_of_32_digits() -> None:
    assert len(id_of_worker(SessionId(4711))) == 32
    assert worker_of_id(id_of_worker(SessionId(4711))) == 4711


def test_dropped_events_are_published_with_their_count() -> None:
    body = json.loads(dropped("/mainspring/x", "7", NOW, 12, NOW - SECOND, NOW).body)
    assert (body["type"], body["data"]["count"]) == ("events.dropped", 12)


def a_webhook(words: str) -> Webhook:
    [webhook] = read_webhooks({"a": tuple(words.split())})
    return webhook


def an_event(kind: str = "run.dead", tenant: str = "default", task: str = "charge", queue: str = "default") -> Event:
    return Event(Topic.JOBS, "k", kind, "1", tenant, task, queue, b"{}")


def test_a_webhook_receives_the_events_that_match_its_filters() -> None:
    everything = a_webhook("https://a.example secret=KEY_ONE")
    assert everything.demands(an_event())
    assert not everything.demands(an_event(tenant="acme"))
    assert not everything.demands(an_event(queue=QUEUE)), "its own deliveries"
    some = a_webhook("https://a.example secret=KEY_ONE type=run.dead type=worker.* task=char* tenant=*")
    assert some.demands(an_event(tenant="acme"))
    assert not some.demands(an_event(kind="run.failed"))
    assert not some.demands(an_event(task="mail"))
    assert not some.demands(an_event("worker.lost", "", "")), "the filter names a task"
    assert (everything.owner, some.owner) == ("default", "default")
    assert some.may_want("run.failed", "acme"), "it is also published as run.dead"
    assert not some.may_want("run.started", "acme")
    assert not everything.may_want("worker.joined", "")


@pytest.mark.parametrize(
    "words",
    [
        "",
        "ftp://a.example secret=KEY_ONE",
        "https://a.example",
        "https://a.example secret=lower",
        "https://a.example secret=KEY_ONE secret=KEY_TWO",
        "https://a.example secret=KEY_ONE tenant=a tenant=b",
        "https://a.example secret=KEY_ONE colour=red",
        "https://a.example secret=KEY_ONE type=",
    ],
)
def test_an_invalid_webhook_is_rejected(words: str) -> None:
    with pytest.raises(Invalid, match=r"events\.webhooks"):
        a_webhook(words)
