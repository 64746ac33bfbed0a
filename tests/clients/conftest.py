"""A running server, a folder with its OpenAPI document, and the programs that generate and compile clients."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import pytest

from tests.support.processes import START_SECONDS, Processes, api_client, free_port, until_ready
from tests.support.servers import not_here
from tests.support.waiting import DEADLINE_SECONDS
from tools.services import all_services
from tools.services.clients import OapiCodegen

#: Runs a command in the folder of ``workshop`` and returns its output.
Shell = Callable[[str], str]


@pytest.fixture(scope="package")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    """The port of a running ``mainspring up``."""
    folder = tmp_path_factory.mktemp("server")
    async with Processes(str(folder / "mainspring.db"), folder / "logs") as processes:
        port = free_port()
        up = processes.start("up", "--port", str(port))
        async with api_client(port) as client:
            await until_ready(client, up, processes)
        yield port


@pytest.fixture(scope="package")
def workshop(server: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the ``openapi.json`` of the server. Programs in its folder ``bin`` are found by ``shell``."""
    folder = tmp_path_factory.mktemp("workshop")
    (folder / "bin").mkdir()
    served = httpx2.get(f"http://127.0.0.1:{server}/openapi.json", timeout=DEADLINE_SECONDS, trust_env=False)
    (folder / "openapi.json").write_bytes(served.content)
    return folder


@pytest.fixture(scope="package")
def openapi_generator(workshop: Path, address_of: Callable[[str], str]) -> None:
    """Add ``openapi-generator-cli``, the name under which package managers install it."""
    [jar] = Path(address_of("openapi-generator")).glob("*.jar")
    program = workshop / "bin/openapi-generator-cli"
    # It runs for seconds: optimizing its own code would cost more than it saves.
    program.write_text(f'#!/bin/sh\nexec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -jar "{jar}" "$@"\n')
    program.chmod(0o755)


@pytest.fixture(scope="package")
def node(workshop: Path, address_of: Callable[[str], str]) -> None:
    """Add the packages of Node.js."""
    (workshop / "node_modules").symlink_to(address_of("node-packages"))


@pytest.fixture(scope="package")
def java_libraries(address_of: Callable[[str], str]) -> str:
    """The folder with the jars that a generated Java client needs."""
    return address_of("java-client")


@pytest.fixture(scope="package")
def oapi_codegen(workshop: Path, address_of: Callable[[str], str]) -> Path:
    """Add ``oapi-codegen``; the folder with a Go module for its output."""
    (workshop / "bin/oapi-codegen").symlink_to(address_of("oapi-codegen"))
    generator = all_services()["oapi-codegen"]
    assert isinstance(generator, OapiCodegen)
    return Path(shutil.copytree(generator.module_folder, workshop / "oapi-codegen"))


@pytest.fixture(scope="package")
def shell(workshop: Path) -> Shell:
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(map(str, (workshop / "bin", workshop / "node_modules/.bin", os.environ["PATH"]))),
        # Tests download nothing.
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "npm_config_offline": "true",
        "npm_config_update_notifier": "false",
    }

    def run(command: str) -> str:
        done = subprocess.run(
            ["sh", "-euc", command],
            cwd=workshop,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-6_000:]}\n{done.stderr[-6_000:]}"
        return done.stdout

    return run


@pytest.fixture(scope="package")
def go() -> None:
    """Skip the test without Go; CI fails."""
    if shutil.which("go") is None:
        not_here("go is not installed")
