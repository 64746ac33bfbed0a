"""The systemd units: systemd accepts them, and our program accepts their commands."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command

from mainspring.cli.main import application
from mainspring.config.loading import load
from mainspring.core.model.alerts.alert_messages import QUEUE as NOTIFICATIONS
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.events.webhooks import QUEUE as WEBHOOKS
from tools.services import ROOT

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("system")]
FOLDER = ROOT / "deploy" / "systemd"
UNITS = sorted(path.name for path in FOLDER.glob("*.service"))
#: The exposure level of ``systemd-analyze security``, out of 10. A unit without any hardening has 9.6.
MOST_EXPOSED = 2.0


@pytest.fixture(scope="session")
def analyze(address_of: Callable[[str], str]) -> str:
    return address_of("systemd")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Copies of the units whose program exists."""
    for path in (*FOLDER.glob("*.service"), *FOLDER.glob("*.target")):
        text = path.read_text().replace("/opt/mainspring/bin/mainspring", sys.executable)
        (tmp_path / path.name).write_text(text)
    return tmp_path


def verify(analyze: str, units: Path, *names: str) -> str:
    command = [analyze, "verify", "--recursive-errors=no", *(f"./{name}" for name in names)]
    done = subprocess.run(command, cwd=units, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr + ("" if done.returncode == 0 else f"exit code {done.returncode}")


def test_systemd_accepts_the_units(analyze: str, units: Path) -> None:
    names = [name.replace("@.", "@mail.") for name in UNITS]
    assert len(names) == 3
    assert verify(analyze, units, *names, "mainspring.target") == ""


def test_systemd_finds_an_unknown_option(analyze: str, units: Path) -> None:
    """Proves that the check of the units can fail."""
    unit = units / "mainspring-api.service"
    unit.write_text(unit.read_text().replace("ProtectHome=", "ProtectHouse="))
    assert "ProtectHouse" in verify(analyze, units, unit.name)


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_hardened(analyze: str, units: Path, name: str) -> None:
    command = [analyze, "security", "--offline=true", f"--threshold={MOST_EXPOSED * 10:.0f}", name]
    done = subprocess.run(command, cwd=units, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_runs_a_valid_command_and_waits_for_its_grace_period(name: str) -> None:
    unit = dict(re.findall(r"^(\w+)=(.*)$", (FOLDER / name).read_text(), re.MULTILINE))
    line = unit["ExecStart"].replace("%i", "mail").replace("${SLOTS}", "20")
    for app in ("", "tasks:app"):
        program, command, *arguments = shlex.split(line.replace("$APPLICATION", app))
        assert program == "/opt/mainspring/bin/mainspring"
        given = get_command(application).commands[command].make_context(program, arguments).params  # type: ignore[attr-defined]
        loaded = load({"worker.queues": given.get("queue")}, {})
        if command == "worker":
            assert loaded.worker.queues == {"mail": 20}
        assert int(unit["TimeoutStopSec"].removesuffix("s")) * SECOND >= loaded.worker.grace + 10 * SECOND


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_restarted_without_a_limit(name: str) -> None:
    """By default systemd stops restarting a unit that has started five times in ten seconds."""
    unit, _, service = (FOLDER / name).read_text().partition("[Service]")
    assert "\nStartLimitIntervalSec=0\n" in unit
    assert "\nRestart=always\n" in service


def test_the_page_creates_the_files_that_a_unit_needs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "deploy" / "vm-and-systemd.md").read_text()
    made = re.findall(r"^(printf|echo) ('.*') \|\n +install .* /dev/stdin (/etc/mainspring/\S+)", page, re.MULTILINE)
    unit = (FOLDER / "mainspring-api.service").read_text()
    needed = re.findall(r"^(?:EnvironmentFile|Environment=MAINSPRING_CONFIG)=(/\S+)$", unit, re.MULTILINE)
    assert {path for _, _, path in made} == set(needed)
    for tool, text, path in made:
        done = subprocess.run(["sh", "-ec", f"{tool} {text}"], capture_output=True, text=True, check=True)
        (tmp_path / Path(path).name).write_text(done.stdout)
    variables = dict([(tmp_path / "mainspring.env").read_text().strip().split("=", 1)])
    loaded = load(environment=variables, file=tmp_path / "mainspring.toml")
    assert (loaded.log.format, loaded.store.partition(":")[0]) == ("json", "postgresql")


def test_the_drop_in_on_the_page_names_the_cgroup_of_the_service(analyze: str, units: Path) -> None:
    page = (ROOT / "docs" / "deploy" / "vm-and-systemd.md").read_text()
    [text] = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    options = dict(re.findall(r"^ *(\w+)=(.*)$", text, re.MULTILINE))
    name, _, value = options["Environment"].partition("=")
    loaded = load(environment={name: value.replace("%n", "mainspring-worker@mail.service")})
    assert loaded.tasks.cgroup == f"/sys/fs/cgroup/{options['Slice']}/mainspring-worker@mail.service"
    folder = units / "mainspring-worker@.service.d"
    folder.mkdir()
    # Only newer versions of systemd know this option.
    (folder / "limits.conf").write_text(re.sub("DelegateSubgroup=.*\n", "", text))
    assert verify(analyze, units, "mainspring-worker@mail.service") == ""


def test_the_page_starts_workers_for_alerts_and_webhooks() -> None:
    page = (ROOT / "docs" / "deploy" / "vm-and-systemd.md").read_text()
    started = set(re.findall(r"mainspring-worker@(\w+)", "".join(re.findall("^systemctl enable .*$", page, re.M))))
    assert started >= {NOTIFICATIONS, WEBHOOKS}


def test_sysusers_and_tmpfiles_create_the_user_and_the_folder(tmp_path: Path, analyze: str) -> None:
    (tmp_path / "etc").mkdir()
    for tool, kind in (("systemd-sysusers", "sysusers"), ("systemd-tmpfiles", "tmpfiles")):
        program = shutil.which(tool)
        assert program
        more = ["--create"] if kind == "tmpfiles" else []
        command = [program, *more, f"--root={tmp_path}", str(FOLDER / f"mainspring.{kind}")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert re.search(r"^mainspring:.*:/var/lib/mainspring:", (tmp_path / "etc" / "passwd").read_text(), re.MULTILINE)
    assert (tmp_path / "etc" / "mainspring").stat().st_mode & 0o777 == 0o750
