"""Every block of the tutorial, as a reader would paste it."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from tests.support.processes import START_SECONDS, free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_UP = "mainspring up tasks:app"


@pytest.mark.system
@pytest.mark.timeout(900)
def test_every_block_of_the_tutorial_works(tmp_path: Path) -> None:
    port = str(free_port())
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MAINSPRING_PORT": port,
    }
    outputs: list[str] = []
    up: subprocess.Popen[bytes] | None = None
    try:
        for kind, text in _BLOCK.findall((ROOT / "docs/get-started/tutorial.md").read_text()):
            if kind == "python":
                (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
            elif "make setup" in text:
                continue  # Done before the tests run.
            elif text.strip() == _UP:
                with (tmp_path / "up.log").open("wb") as log:
                    up = subprocess.Popen(_UP.split(), cwd=tmp_path, env=environment, stdout=log, stderr=log)
                log_file = tmp_path / "up.log"
                wait_until(lambda: is_ready(port), log_file.read_text, deadline=START_SECONDS)
            else:
                command = text.strip().replace("localhost:7070", f"127.0.0.1:{port}")
                found = subprocess.run(
                    ["bash", "-ec", command],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=240,
                )
                assert found.returncode == 0, (
                    f"{command}\n{found.stdout}{found.stderr}{(tmp_path / 'up.log').read_text()}"
                )
                outputs.append(found.stdout)
    finally:
        if up is not None:
            up.terminate()
            assert up.wait(120) == 0
    for expected in ("hello world", "hello again", '"jobId"', "every weekday at 09:00", "2 passed"):
        assert expected in "\n".join(outputs)


def is_ready(port: str) -> bool:
    with suppress(httpx2.TransportError):
        return httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=60, trust_env=False).status_code == 200
    return False
