"""The tutorial, pasted as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import free_port

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_UP = "mainspring up tasks:app"


@pytest.mark.system
@pytest.mark.timeout(120)
def test_every_block_of_the_tutorial(tmp_path: Path) -> None:
    port = str(free_port())
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MAINSPRING_PORT": port,
    }
    said: list[str] = []
    up: subprocess.Popen[bytes] | None = None
    try:
        for kind, text in _BLOCK.findall((ROOT / "docs/tutorial.md").read_text()):
            if kind == "python":
                (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
            elif "make setup" in text:
                continue  # The tests have it behind them.
            elif text.strip() == _UP:
                with (tmp_path / "up.log").open("wb") as log:
                    up = subprocess.Popen(_UP.split(), cwd=tmp_path, env=environment, stdout=log, stderr=log)
                _wait_for(port, environment)
            else:
                command = text.strip().replace("localhost:7070", f"127.0.0.1:{port}")
                found = subprocess.run(
                    ["bash", "-ec", command],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=60,
                )
                assert found.returncode == 0, (
                    f"{command}\n{found.stdout}{found.stderr}{(tmp_path / 'up.log').read_text()}"
                )
                said.append(found.stdout)
    finally:
        if up is not None:
            up.terminate()
            assert up.wait(30) == 0
    whole = "\n".join(said)
    for expected in ("hello world", "hello again", '"jobId"', "every weekday at 09:00", "2 passed"):
        assert expected in whole


def _wait_for(port: str, environment: dict[str, str]) -> None:
    waiting = f"until curl -sf http://127.0.0.1:{port}/readyz > /dev/null; do sleep 0.1; done"
    subprocess.run(["bash", "-ec", waiting], env=environment, check=True, timeout=30)
