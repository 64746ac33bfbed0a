"""Choosing a broker: refused settings, the findings of ``doctor``, and hidden passwords."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import msgspec
import pytest
import redis
from typer.testing import CliRunner

from mainspring.cli.main import application
from mainspring.config.loading import load
from mainspring.config.servers.broker_routes import read_routes, split_brokers
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.dead_letters import DeadRun
from tests.support import rabbitmq
from tests.support.processes import free_port
from tests.support.servers import started
from tools.services.redis import Redis

PAGE = (Path(__file__).parents[2] / "docs/concepts/brokers.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def doctor(store: Path, broker: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    monkeypatch.setenv("MAINSPRING_STORE", str(store))
    monkeypatch.setenv("MAINSPRING_DISPATCH_BROKER", broker)
    assert CliRunner().invoke(application, ["migrate"]).exit_code == 0
    # In its own process: log lines must not end up in the output.
    result = subprocess.run([sys.executable, "-m", "mainspring", "doctor", "--json"], capture_output=True, check=False)
    return {finding["check"]: finding for finding in json.loads(result.stdout)["findings"]}


def test_the_store_alone_needs_no_routes() -> None:
    assert read_routes("store", {}) == {}
    assert read_routes("store", {"mail": ("store",), "*": ("store",)}) == {}


def test_a_broker_serves_all_queues_or_some() -> None:
    assert read_routes("redis://a", {}) == {"*": "redis://a"}
    settings = load({}, {"MAINSPRING_DISPATCH_QUEUES": "mail=redis://a:1,default=store"}).dispatch
    assert read_routes(settings.broker, settings.queues) == {"*": "store", "mail": "redis://a:1", "default": "store"}


@pytest.mark.parametrize(
    "cluster",
    [
        "kafka://a:9092,b:9092",
        "kafka://a:9092,b/?topics={queue}-{datacenter}&retries={queue}-retry&partitions=24",
        "amqp://user:password@a,b:5673,c/vhost?kind=quorum",
        "amqp://a,b?kind=quorum",
        "redis+sentinel://a:26379,b:26379,c/main/0",
        "redis+cluster://a,b,c",
    ],
)
@pytest.mark.parametrize(
    "text", ["mail=BROKER", "mail=BROKER, ", "default=store,mail=BROKER", "mail=BROKER, default=store,*=redis://d"]
)
def test_a_cluster_for_one_queue_can_be_set_in_the_environment(cluster: str, text: str) -> None:
    settings = load({}, {"MAINSPRING_DISPATCH_QUEUES": text.replace("BROKER", cluster)}).dispatch
    routes = read_routes(settings.broker, settings.queues)
    assert routes.pop("mail") == cluster
    assert routes.get("default", "store") == "store"
    assert routes["*"] == ("redis://d" if "*" in text else "store")


@pytest.mark.parametrize(
    "text", ["reddis://a", "etcd://a", "redis", "redis://", "redis://a:b", "", "amqp://", "amqp://a?kind=b"]
)
def test_an_invalid_broker_address_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="dispatch"):
        load({}, {"MAINSPRING_DISPATCH_BROKER": text})


def test_priority_slots_and_a_broker_are_refused_together() -> None:
    with pytest.raises(Invalid, match=r"worker\.priorities"):
        load({}, {"MAINSPRING_DISPATCH_BROKER": "redis://a", "MAINSPRING_WORKER_PRIORITIES": "1:10"})


def test_settings_do_not_show_passwords() -> None:
    environment = {
        "MAINSPRING_DISPATCH_BROKER": "redis://:hush@a",
        "MAINSPRING_DISPATCH_QUEUES": "mail=redis://:hush@b",
        "MAINSPRING_DISPATCH_KEY": "hush",
    }
    assert "hush" not in repr(load({}, environment))


def test_doctor_checks_the_broker(
    address_of: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor(tmp_path / "m.db", address_of("redis"), monkeypatch)["dispatch"]["level"] == "ok"
    assert "dispatch" not in doctor(tmp_path / "m.db", "store", monkeypatch)


def test_doctor_warns_of_an_unreachable_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor(tmp_path / "m.db", f"redis://127.0.0.1:{free_port()}", monkeypatch)["dispatch"]
    assert found["level"] == "warning"
    assert "does not answer" in found["says"]


def test_doctor_warns_of_a_redis_server_that_evicts_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Redis(tmp_path / "redis")
    address = started(server)
    try:
        with redis.Redis.from_url(address) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        found = doctor(tmp_path / "m.db", address, monkeypatch)["dispatch"]
    finally:
        server.remove()
    assert found["level"] == "warning"
    assert "allkeys-lru" in found["says"]


def test_doctor_checks_rabbitmq_and_its_queues(
    address_of: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, store = address_of("rabbitmq"), tmp_path / "m.db"
    assert "rabbitmq answers" in doctor(store, address, monkeypatch)["dispatch"]["says"]
    wrong = doctor(store, address.replace(":guest@", ":wrong@"), monkeypatch)["dispatch"]
    assert (wrong["level"], "ACCESS_REFUSED" in wrong["says"]) == ("warning", True)
    submitted = CliRunner().invoke(application, ["jobs", "submit", "greet", "--queue", "mail"])
    assert submitted.exit_code == 0, submitted.output
    [[identity]] = list(apsw.Connection(str(store)).execute("SELECT store_id FROM meta"))
    name = f"mainspring.{identity}.queue.mail"
    with rabbitmq.channel_of(address) as channel:
        channel.queue_declare(name, durable=True, auto_delete=False)
    try:
        found = doctor(store, address, monkeypatch)["dispatch"]
    finally:
        rabbitmq.delete(address, name, f"mainspring.{identity}.dead")
    assert found["level"] == "warning"
    assert f"{name} has other arguments" in found["says"]


def test_a_list_of_brokers_may_contain_addresses_with_several_hosts() -> None:
    named = "store, redis://a:1,amqp://u:p@a,b:2,store.example/?kind=quorum,store"
    assert split_brokers(named) == ["store", "redis://a:1", "amqp://u:p@a,b:2,store.example/?kind=quorum", "store"]
    bare = "redis,store,kafka, redis+sentinel://a,b/main/0,rabbitmq"
    assert split_brokers(bare, ["redis", "rabbitmq", "kafka"]) == [
        "redis",
        "store",
        "kafka",
        "redis+sentinel://a,b/main/0",
        "rabbitmq",
    ]


def test_the_settings_and_the_dead_letter_on_the_page_are_valid(tmp_path: Path) -> None:
    blocks = _BLOCK.findall(PAGE)
    for text in [text for kind, text in blocks if kind == "toml"]:
        (tmp_path / "mainspring.toml").write_text(text)
        section = load(file=tmp_path / "mainspring.toml", environment={}).dispatch
        assert read_routes(section.broker, section.queues) or section.status_cache
    [letter] = [text for kind, text in blocks if kind == "json"]
    assert msgspec.json.decode(letter, type=DeadRun, strict=True).message() == msgspec.json.encode(json.loads(letter))
