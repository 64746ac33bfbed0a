"""A running server, and a folder with its OpenAPI document and the programs that generate clients."""

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

#: Commands of the page, as they stand there. Each runs in the folder of ``workshop``.
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
def workshop(server: int, address_of: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``openapi.json`` of the server, ``node_modules``, and the generators in ``bin``."""
    folder = tmp_path_factory.mktemp("workshop")
    served = httpx2.get(f"http://127.0.0.1:{server}/openapi.json", timeout=DEADLINE_SECONDS, trust_env=False)
    (folder / "openapi.json").write_bytes(served.content)
    (folder / "node_modules").symlink_to(address_of("node-packages"))
    [jar] = Path(address_of("openapi-generator")).glob("*.jar")
    (folder / "bin").mkdir()
    generator = folder / "bin" / "openapi-generator-cli"
    # Half of a short run is compiling the generator itself well.
    generator.write_text(f'#!/bin/sh\nexec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -jar "{jar}" "$@"\n')
    generator.chmod(0o755)
    (folder / "bin" / "oapi-codegen").symlink_to(address_of("oapi-codegen"))
    return folder


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
    if shutil.which("go") is None:
        not_here("go is not installed")
