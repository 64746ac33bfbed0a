"""Kafka topics: where hints are published, and which topics a worker reads."""

import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.cluster.hints import Hint
from mainspring.integrations.kafka.address import parse_kafka
from mainspring.integrations.kafka.request_topic import RequestSigner, name_dead_topic, read_request_topic
from mainspring.integrations.kafka.topics import OPTIONS, TopicNames, read_topics
from tests.support.builders import a_run


def names(query: str = "") -> TopicNames:
    return read_topics(parse_kafka(f"kafka://a/?{query}", "field", OPTIONS), "field")


def a_hint(queue: str = "mail", priority: int = 5, attempt: int = 1, datacenter: str = "") -> Hint:
    return Hint(a_run().id, queue, 1, priority, attempt=attempt, datacenter=datacenter)


def test_first_attempts_and_retries_have_separate_topics() -> None:
    assert names().of(a_hint()) == "run-queue"
    assert names().of(a_hint(attempt=2)) == "retry-queue"
    assert names().served("mail", "") == ["run-queue", "retry-queue"]
    assert (names().dead, names().partitions) == ("dead-letter-queue", 12)


def test_a_template_separates_queues_priorities_and_data_centers() -> None:
    found = names("topics={queue}-{priority}-{datacenter}&retries=again-{queue}")
    assert found.of(a_hint(priority=1, datacenter="us-east")) == "mail-p1-us-east"
    assert found.of(a_hint(priority=10)) == "mail-p3-any"
    assert found.of(a_hint(priority=0)) == "mail-p2-any"
    assert found.served("mail", "us-east")[:3] == ["mail-p1-us-east", "mail-p1-any", "again-mail"]
    assert names("topics={queue}-{datacenter}").of(a_hint("cron-jobs", datacenter="us-east")) == "cron-jobs-us-east"


@pytest.mark.parametrize("priority", range(11))
@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("datacenter", ["", "eu"])
@pytest.mark.parametrize("query", ["", "topics={queue}.{priority}.{datacenter}", "topics=x{datacenter}&retries=x-r"])
def test_a_worker_reads_every_topic_that_its_hints_are_published_to(
    query: str, priority: int, attempt: int, datacenter: str
) -> None:
    found = names(query)
    hint = a_hint("a queue / ü", priority, attempt, datacenter)
    assert found.of(hint) in found.served("a queue / ü", datacenter)


@pytest.mark.parametrize(
    "query", ["topics={what}", "topics=a/b", "topics=", "retries={}", "dead={queue}", "partitions=0", "partitions=x"]
)
def test_an_invalid_topic_template_is_rejected(query: str) -> None:
    with pytest.raises(Invalid):
        names(query)


def test_a_topic_in_the_address_is_for_requests_only() -> None:
    with pytest.raises(Invalid):
        read_topics(parse_kafka("kafka://a/job-requests", "field", OPTIONS), "field")
    found = read_request_topic("kafka://a/job-requests?partitions=3", "field")
    assert (found.name, name_dead_topic(found.name), found.partitions) == ("job-requests", "job-requests-dead", 3)


@pytest.mark.parametrize("text", ["kafka://a", "kafka://a/", "kafka://a/x/y", "kafka://a/x?topics=y", "redis://a/x"])
def test_an_address_without_a_request_topic_is_rejected(text: str) -> None:
    with pytest.raises(Invalid):
        read_request_topic(text, "field")


def test_a_signature_covers_the_submitter_and_the_whole_request() -> None:
    signer = RequestSigner(b"key")
    signature = signer.sign("ada", "acme", "1", b"{}")
    assert signer.verify(signature, "ada", "acme", "1", b"{}")
    others = [("bob", "acme", "1", b"{}"), ("ada", "else", "1", b"{}"), ("ada", "acme", "2", b"{}")]
    assert not any(signer.verify(signature, *other) for other in [*others, ("ada", "acme", "1", b"{ }")])
    assert not signer.verify("gefälscht".encode(), "ada", "acme", "1", b"{}")
    assert not RequestSigner(b"another").verify(signature, "ada", "acme", "1", b"{}")
