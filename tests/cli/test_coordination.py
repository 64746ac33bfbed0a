"""A coordinator other than the store, chosen on the command line, and the page about it."""

import asyncio
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from mainspring.cli.main import application
from mainspring.config.loading import load
from mainspring.core.model.base.instant import format_duration
from tests.support.coordination_harness import OUTSIDE
from tests.support.processes import Processes, free_port, until_ready
from tests.support.waiting import DEADLINE_SECONDS, eventually
from tools.services.etcd import Etcd
from tools.services.zookeeper import ZooKeeper

PAGE = (Path(__file__).parents[2] / "docs/operate/coordination.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


async def doctor(store: Path, coordination: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    monkeypatch.setenv("MAINSPRING_COORDINATION", coordination)
    await asyncio.to_thread(CliRunner().invoke, application, ["migrate", "--store", str(store)])
    result = await asyncio.to_thread(CliRunner().invoke, application, ["doctor", "--store", str(store), "--json"])
    return {finding["check"]: finding for finding in json.loads(result.stdout)["findings"]}


@pytest.mark.parametrize("coordinator", OUTSIDE)
async def test_doctor_checks_the_coordinator(
    coordinator: str, address_of: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (await doctor(tmp_path / "m.db", address_of(coordinator), monkeypatch))["coordination"]
    assert found["level"] == "ok"
    assert re.fullmatch(rf"{coordinator} answers in \d+ ms and grants leases of 3s", found["says"])


async def test_doctor_has_no_coordination_check_if_the_store_coordinates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "coordination" not in await doctor(tmp_path / "m.db", "store", monkeypatch)


async def test_doctor_reports_an_unreachable_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for coordinator in OUTSIDE:
        found = await doctor(tmp_path / "m.db", f"{coordinator}://127.0.0.1:{free_port()}", monkeypatch)
        assert found["coordination"]["level"] == "problem"
        assert "does not answer" in found["coordination"]["says"]


async def test_up_with_a_coordinator_names_it_in_its_health_and_its_banner(
    tmp_path: Path, address_of: Callable[[str], str]
) -> None:
    port, logs = free_port(), tmp_path / "logs"
    logs.mkdir()
    async with (
        Processes(str(tmp_path / "m.db"), logs) as processes,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_SECONDS) as client,
    ):
        process = processes.start("up", "--port", str(port), "--coordination", address_of("zookeeper"))
        await until_ready(client, process, processes)

        async def read_health() -> dict[str, Any] | None:
            assert process.poll() is None, processes.logs()
            health: dict[str, Any] = (await client.get("/healthz")).json()
            return health if health["shards"] == 100 else None

        health = await eventually(read_health, processes.logs)
        assert health is not None
        assert health["coordination"] == "zookeeper"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait) == 0
        assert "shards by zookeeper://" in (logs / "0-up.log").read_text()


def test_an_invalid_coordinator_address_is_refused() -> None:
    result = CliRunner().invoke(application, ["scheduler", "--coordination", "etcd://a:b"])
    assert result.exit_code != 0
    assert "coordination" in str(result.exception)


def test_the_settings_on_the_page_are_valid(tmp_path: Path) -> None:
    file = tmp_path / "mainspring.toml"
    blocks = [text for kind, text in _BLOCK.findall(PAGE) if kind == "toml"]
    assert blocks
    for text in blocks:
        file.write_text(text)
        assert load(file=file, environment={}).coordination != "store"


def test_the_page_shows_the_server_settings_that_were_measured() -> None:
    [etcd, zookeeper] = [text for kind, text in _BLOCK.findall(PAGE) if kind == "ini"]
    assert etcd.split() == [f"ETCD_HEARTBEAT_INTERVAL={Etcd.heartbeat}", f"ETCD_ELECTION_TIMEOUT={Etcd.election}"]
    assert f"tickTime={ZooKeeper.tick}\n" in zookeeper


def test_the_page_names_the_default_lease() -> None:
    lease = load(environment={}).scheduler.lease
    assert f"`scheduler.lease` (`{format_duration(lease)}`)" in PAGE
