"""``deploy/compose.yaml``, as far as it can be checked without a container runtime."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from typer.main import get_command

from mainspring.cli.main import application
from mainspring.config.loading import load

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/compose.yaml"
TEXT = FILE.read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
#: Built from this repository. etcd has a build as well, but it is a server.
ROLES = {name for name, service in SERVICES.items() if "context" in service.get("build", {})}
SERVERS = SERVICES.keys() - ROLES


def test_the_file_is_valid_by_the_compose_schema() -> None:
    jsonschema_rs.validate(get_builtin_schema("vendor.compose-spec"), COMPOSE)


def test_every_server_and_every_role_is_a_service() -> None:
    backends = {"postgres", "redis", "rabbitmq", "kafka", "etcd", "zookeeper"}
    assert backends | {"prometheus", "alertmanager", "grafana", "node-exporter"} == SERVERS
    assert {"migration", "scheduler", "worker", "api"} == ROLES
    assert SERVICES["scheduler"]["deploy"]["replicas"] == 3


def test_ports_are_published_on_loopback_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published), published


def test_no_password_has_a_default() -> None:
    assert "PASSWORD" in TEXT
    assert not re.findall(r"\$\{\w*PASSWORD:?-[^}]+\}", TEXT)
    words = [str(value) for service in SERVERS for value in SERVICES[service].get("environment", {}).items()]
    assert all("${" in word for word in words if "PASS" in word or "AUTH" in word), words


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_a_server_has_a_pinned_version_a_health_check_and_a_volume(name: str) -> None:
    server = SERVICES[name]
    assert re.search(r":v?\d+\.\d+\.?\d*(-\w+)?$", server["image"]), server["image"]
    assert server["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    mounted = {volume.partition(":")[0]: volume for volume in server["volumes"]}
    ours = {source for source in mounted if source.startswith("./")}
    kept = mounted.keys() - ours
    assert kept
    assert kept <= COMPOSE["volumes"].keys()
    assert all((FILE.parent / source).is_dir() and mounted[source].endswith(":ro") for source in ours)


@pytest.mark.parametrize("name", sorted(ROLES))
def test_a_role_runs_an_existing_command_with_valid_settings(name: str) -> None:
    role = SERVICES[name]
    assert role["command"][0] in get_command(application).commands  # type: ignore[attr-defined]
    assert (FILE.parent / role["build"]["context"] / role["build"]["dockerfile"]).is_file()
    # The container has no capabilities and a read-only root file system.
    assert (role["read_only"], role["tmpfs"], role["cap_drop"]) == (True, ["/tmp"], ["ALL"])
    environment = {key: _interpolate(value) for key, value in role["environment"].items()}
    loaded = load(environment=environment)
    assert loaded.store == "postgresql://mainspring:s3cret@postgres:5432/mainspring"
    assert (loaded.metrics.host, list(loaded.metrics.ports), loaded.metrics.token) == ("0.0.0.0", [7170], "s3cret")
    if name in ("scheduler", "worker"):
        assert ":7170/healthz" in role["healthcheck"]["test"][-1]
    if name == "worker":
        # Without explicit queues, a worker also takes those of messages and webhooks.
        assert role["command"] == ["worker"]
    if name == "api":
        # The API listens on every interface of the container, so it requires keys.
        assert (loaded.host, loaded.auth.mode) == ("0.0.0.0", "keys")


@pytest.mark.parametrize("name", sorted(ROLES))
def test_every_setting_reaches_every_role(name: str) -> None:
    role = SERVICES[name]
    assert role["env_file"] == [{"path": ".env", "required": False}]
    # These override the settings of the user, so the file sets only what containers need.
    ours = {key for key in role["environment"] if key.startswith("MAINSPRING_")}
    needed = {"STORE", "LOG_FORMAT", "METRICS_HOST", "METRICS_FIRST_PORT", "METRICS_LAST_PORT", "METRICS_TOKEN"}
    more = {"HOST", "AUTH_MODE"} if name == "api" else set()
    assert ours == {f"MAINSPRING_{word}" for word in needed | more}


@pytest.mark.parametrize("name", sorted(ROLES))
def test_a_role_does_not_receive_the_passwords_of_other_services(name: str) -> None:
    named = {word for word in re.findall(r"(?<!\$)\$\{(\w+)", TEXT) if not word.startswith(("BUILD_", "MAINSPRING_"))}
    named |= {secret["environment"] for secret in COMPOSE["secrets"].values()}
    own = {"POSTGRES_PASSWORD", "METRICS_TOKEN"}
    kept_away = {key for key, value in SERVICES[name]["environment"].items() if value == ""}
    assert kept_away == named - own


def test_addresses_on_the_page_name_existing_services() -> None:
    page = (ROOT / "docs/deploy/docker-compose.md").read_text()
    lines = re.findall(r"^  (MAINSPRING_\w+)=(\w+://\S+:\d\S+)", page, re.MULTILINE)
    assert len(lines) == 5
    for name, value in lines:
        load(environment={name: value})
        host = re.sub(r"^\w+://(?:[^@/]*@)?", "", value).partition(":")[0]
        assert SERVICES[host]["profiles"] == [host]


def test_the_settings_on_the_page_are_valid_together() -> None:
    page = (ROOT / "docs/deploy/docker-compose.md").read_text()
    [block] = re.findall(r"```sh\n(  MAINSPRING_NOTIFICATIONS_.*?)```", page, re.DOTALL)
    loaded = load(environment=dict(word.split("=", 1) for word in shlex.split(block)))
    assert loaded.notifications.read().channels.keys() == {"ops"}


@pytest.mark.slow
def test_the_command_on_the_page_creates_an_api_key(tmp_path: Path) -> None:
    """The only command on the page that runs without a container runtime."""
    page = (ROOT / "docs/deploy/docker-compose.md").read_text()
    [arguments] = re.findall(
        r"^docker compose --file deploy/compose.yaml run --rm api (.*) > me.key$", page, re.MULTILINE
    )
    environment = os.environ | {"MAINSPRING_STORE": str(tmp_path / "mainspring.db")}
    command = [sys.executable, "-m", "mainspring", *arguments.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) == 1


def test_prometheus_scrapes_existing_services_and_uses_existing_files() -> None:
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/compose.yml").read_text())
    *jobs, disks = scraped["scrape_configs"]
    assert disks["static_configs"] == [{"targets": ["node-exporter:9100"]}]
    # It mounts the volume of the database at the same path as the database does.
    [volume] = SERVICES["postgres"]["volumes"]
    assert SERVICES["node-exporter"]["volumes"] == [f"{volume}:ro"]
    assert SERVICES["node-exporter"]["profiles"] == SERVICES["prometheus"]["profiles"]
    for job in jobs:
        [found] = job["dns_sd_configs"]
        [name] = found["names"]
        assert found["port"] == (7070 if name == "api" else 7170)
        assert name in ROLES
        assert job["authorization"]["credentials_file"].removeprefix("/run/secrets/") in COMPOSE["secrets"]
    assert SERVICES["prometheus"]["secrets"] == list(COMPOSE["secrets"])
    for line in SERVICES["prometheus"]["command"] + SERVICES["alertmanager"]["command"]:
        if file := re.search("--config.file=/etc/(.+)", line):
            assert (ROOT / "deploy" / file[1]).is_file()
    [provider] = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/mainspring.yml").read_text())[
        "providers"
    ]
    assert f"./grafana:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]


def _interpolate(value: str) -> str:
    """Interpolate variables as Compose does, with the required ones set."""
    value = re.sub(r"\$\{(POSTGRES_PASSWORD|METRICS_TOKEN):\?[^}]*\}", "s3cret", value)
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)
