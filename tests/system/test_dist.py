"""The distribution: built, installed with each extra in a new environment, and run."""

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import tarfile
import tomllib
import urllib.request
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

import mainspring
from mainspring.core.runtime import build as build_info
from tests.support.processes import START_SECONDS, free_port
from tests.support.servers import not_here
from tests.support.waiting import wait_until
from tools import dist
from tools.services import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("dist")]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: A module that each extra installs.
MODULES = {
    "postgres": "asyncpg",
    "rabbitmq": "pamqp",
    "redis": "redis",
    "kafka": "confluent_kafka",
    "s3": "obstore",
    "otel": "opentelemetry.sdk",
}
TASKS = """
from pathlib import Path
from mainspring import Mainspring
app = Mainspring()

@app.task()
async def leave(word: str) -> None:
    Path("left").write_text(word)
"""


@pytest.fixture(scope="module")
def commit() -> str:
    """The commit of the checkout before it is built. Another one may follow while tests run."""
    shown = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return shown.stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, commit: str) -> tuple[Path, Path]:
    """The source distribution, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    wheel, source = sorted(dist.build(folder), key=lambda path: path.suffix != ".whl")
    assert (wheel.suffix, source.suffix) == (".whl", ".gz")
    return source, wheel


def contents(wheel: Path) -> dict[str, str]:
    """The hashes of all files except RECORD, whose order may differ."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: hashlib.sha256(archive.read(name)).hexdigest()
            for name in archive.namelist()
            if not name.endswith("/RECORD")
        }


def clean_environment() -> dict[str, str]:
    """Variables that do not lead to this checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAINSPRING_"))}


def test_every_extra_is_tested_and_documented() -> None:
    extras = PROJECT["optional-dependencies"].keys()
    assert MODULES.keys() | {"all"} == extras
    page = (ROOT / "docs" / "deploy" / "vm-and-systemd.md").read_text()
    [said] = [line for line in page.splitlines() if line.startswith("Extras bring ")]
    assert {name for name in extras if f"`{name}`" in said} == extras


def test_the_package_and_the_project_have_the_same_version() -> None:
    assert PROJECT["version"] == mainspring.__version__


def test_the_wheel_contains_the_whole_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ours = {name.removeprefix("src/") for name in listed.splitlines() if (ROOT / name).exists()}
    in_wheel = {name for name in contents(built[1]) if ".dist-info/" not in name}
    assert ours <= in_wheel
    assert "mainspring/core/runtime/build.json" in in_wheel
    assert {name.split("/")[0] for name in in_wheel} == {"mainspring", "mainspring_pytest"}


def test_wheels_of_the_checkout_and_the_source_distribution_are_the_same(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    source, wheel = built
    [direct] = dist.build(tmp_path, "--wheel")
    assert contents(direct) == contents(wheel)
    # Without git, too.
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    [again] = dist.build(tmp_path / "again", "--wheel", source=unpacked)
    assert again.read_bytes() == wheel.read_bytes()


def test_the_source_distribution_contains_the_files_that_tests_read(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for wanted in (
        "Makefile",
        "deploy/helm/mainspring/values.yaml",
        "docs/get-started/tutorial.md",
        "tests/system/test_dist.py",
    ):
        assert wanted in names
    assert not [name for name in names if name.startswith((".venv", ".services", "dist/"))]


@pytest.mark.parametrize("extra", ["", *PROJECT["optional-dependencies"]])
def test_the_wheel_installs_and_runs_with_each_extra(
    built: tuple[Path, Path], commit: str, tmp_path: Path, extra: str, request: pytest.FixtureRequest
) -> None:
    programs = dist.install(built[1], tmp_path / "environment", extra)
    environment = clean_environment()

    def run(*command: str, **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(programs / command[0]), *command[1:]],
            cwd=tmp_path,
            env=environment | more,
            capture_output=True,
            text=True,
            check=False,
        )

    version = run("mainspring", "--version")
    assert version.returncode == 0, version.stderr
    shown = version.stdout.splitlines()
    assert shown[0] == f"mainspring {PROJECT['version']}"
    assert re.fullmatch(rf"commit {commit}\+? of \d{{4}}-.*", shown[1]), shown

    for name, module in MODULES.items():
        there = run("python", "-c", f"import {module}").returncode == 0
        assert there == (extra in (name, "all")), module
    if extra not in ("postgres", "all"):
        refused = run("mainspring", "migrate", MAINSPRING_STORE="postgresql://127.0.0.1:1/nowhere")
        assert refused.returncode != 0
        assert "mainspring[postgres]" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    # Run a job on the store of this extra.
    store = request.getfixturevalue("postgres_database") if extra in ("postgres", "all") else "mainspring.db"
    (tmp_path / "tasks.py").write_text(TASKS)
    port, log_file = str(free_port()), tmp_path / "log"
    with log_file.open("wb") as log:
        command = [str(programs / "mainspring"), "up", "tasks:app", "--port", port]
        more = {"MAINSPRING_STORE": store, "MAINSPRING_URL": f"http://127.0.0.1:{port}"}
        up = subprocess.Popen(command, cwd=tmp_path, env=environment | more, stdout=log, stderr=log)
    try:

        def ready() -> bool:
            assert up.poll() is None, log_file.read_text()
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60):
                return True
            return False

        wait_until(ready, log_file.read_text, deadline=START_SECONDS)
        submitted = run("mainspring", "jobs", "submit", "leave", "--payload", '{"word": "here"}', **more)
        assert submitted.returncode == 0, submitted.stderr
        wait_until(
            lambda: (tmp_path / "left").exists() and (tmp_path / "left").read_text() == "here", log_file.read_text
        )
    finally:
        up.terminate()
        assert up.wait(120) == 0, log_file.read_text()


def test_the_sbom_lists_installed_packages_with_their_licenses(built: tuple[Path, Path], tmp_path: Path) -> None:
    if importlib.util.find_spec("cyclonedx_py") is None:
        not_here("cyclonedx-bom is not installed: make dist does it")
    dist.write_sbom(built[1], tmp_path / "sbom.json")
    sbom = json.loads((tmp_path / "sbom.json").read_text())
    assert sbom["bomFormat"] == "CycloneDX"
    assert sbom["metadata"]["component"]["name"] == "mainspring"
    assert sbom["metadata"]["component"]["version"] == PROJECT["version"]
    found = {component["name"].lower().replace("_", "-"): component for component in sbom["components"]}
    pinned = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", dist.PINNED.read_text(), re.MULTILINE))
    wanted = [*PROJECT["dependencies"], *(word for name in MODULES for word in PROJECT["optional-dependencies"][name])]
    for name in (re.split(r"[>=\[; ]", word)[0] for word in wanted):
        assert found[name]["version"] == pinned[name]
        assert found[name]["licenses"]
        assert found[name]["purl"].startswith(f"pkg:pypi/{name}@")
    # Development tools are not shipped.
    assert not {"pytest", "ruff", "mypy"} & found.keys()
    assert str(tmp_path) not in json.dumps(sbom)


def test_a_checkout_reports_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    assert build_info.read_checkout(tmp_path) == ("", "")
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]
    (tmp_path / "file").write_text("one")
    for command in (["init", "--quiet"], ["add", "file"], ["commit", "--quiet", "--message=one"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    first = build_info.read_checkout(tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", first.commit)
    (tmp_path / "file").write_text("two")
    assert build_info.read_checkout(tmp_path) == (f"{first.commit}+", first.date)
