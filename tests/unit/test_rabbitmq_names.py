"""Names of RabbitMQ's queues by a template, and which pools of slots a broker can feed."""

import pytest

from mainspring.config.loading import load
from mainspring.config.servers.broker_routes import read_routes
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.cluster.hints import Hint
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.integrations.rabbitmq.address import parse_rabbitmq
from mainspring.integrations.rabbitmq.client import Client
from mainspring.integrations.rabbitmq.queues import QueueDeclarer
from tests.support.builders import a_run

RABBIT = "amqp://user:password@host:5672"
UBER = f"{RABBIT}/?queues=jobs.priority.{{priority}}"


def make_queues(options: str) -> QueueDeclarer:
    broker = parse_rabbitmq(f"{RABBIT}/?{options}", "dispatch.broker")
    return QueueDeclarer(Client(broker, SystemClock(), SECOND), broker, "store-1")


def test_each_priority_has_a_queue_with_its_number() -> None:
    queues = make_queues("queues=jobs.priority.{priority}")
    assert queues.names("payouts") == tuple(f"jobs.priority.{priority}" for priority in range(1, 11))
    assert queues.names("payouts", 3) == ("jobs.priority.3",)
    for priority in (1, 2, 10):
        queue = queues.find(Hint(a_run().id, "payouts", 0, priority))
        assert queue == (f"jobs.priority.{priority}", 0)
    assert queues.find(Hint(a_run().id, "payouts", 0)) == ("jobs.priority.5", 0)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_template_may_name_the_queue_and_the_store(kind: str) -> None:
    queues = make_queues(f"kind={kind}&queues={{store}}:{{queue}}")
    assert queues.names("mail") == ("store-1:mail",)
    assert queues.find(Hint(a_run().id, "mail", 0, 1)) == ("store-1:mail", 9)
    [name] = queues.names("Überweisungen")
    assert name.startswith("store-1:#")
    assert name.isascii()


@pytest.mark.parametrize("template", ["{other}", "a b", "{queue", "", "x" * 61, "ä"])
def test_a_bad_template_is_refused(template: str) -> None:
    if not template:
        assert parse_rabbitmq(f"{RABBIT}/?queues=", "dispatch.broker").queues == ""
        return
    with pytest.raises(Invalid, match=r"template|no address") as caught:
        parse_rabbitmq(f"{RABBIT}/?queues={template}", "dispatch.broker")
    assert caught.value.field == "dispatch.broker"


def test_names_without_the_queue_serve_one_queue_alone() -> None:
    assert read_routes("store", {"payouts": (UBER,)}) == {"*": "store", "payouts": UBER}
    by_queue = f"{RABBIT}/?queues={{queue}}.priority.{{priority}}"
    assert read_routes(by_queue, {"mail": (by_queue,)})["*"] == by_queue
    for broker, queues in ((UBER, {}), ("store", {"*": (UBER,)}), ("store", {"payouts": (UBER,), "mail": (UBER,)})):
        with pytest.raises(Invalid, match="are for one queue"):
            read_routes(broker, queues)


@pytest.mark.parametrize(
    "dispatch",
    [
        {},
        {"dispatch.queues": f"payouts={UBER}"},
        {"dispatch.broker": f"{RABBIT}/?kind=quorum&queues={{queue}}.{{priority}}"},
        {"dispatch.queues": "mail=redis://host", "worker.queues": "payouts:10"},
    ],
)
def test_pools_work_with_the_store_and_with_a_queue_for_each_priority(dispatch: dict[str, object]) -> None:
    assert load({"worker.priorities": "1:100,2:50,3:20"} | dispatch, {}).worker.priorities == {
        "1": 100,
        "2": 50,
        "3": 20,
    }


@pytest.mark.parametrize(
    "dispatch",
    [
        {"dispatch.broker": RABBIT},
        {"dispatch.broker": f"{RABBIT}/?queues=our.{{queue}}"},
        {"dispatch.broker": "redis://host"},
        {"dispatch.broker": "kafka://host/?topics={queue}-{priority}"},
        {"dispatch.queues": "mail=redis://host"},
        {"dispatch.queues": "mail=redis://host", "worker.queues": "mail:10"},
    ],
)
def test_pools_are_refused_with_a_broker_that_mixes_priorities(dispatch: dict[str, object]) -> None:
    with pytest.raises(Invalid, match="does not separate priorities") as caught:
        load({"worker.priorities": "1:100,2:50,3:20"} | dispatch, {})
    assert caught.value.field == "worker.priorities"
