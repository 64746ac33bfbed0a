"""docs/how-to/command-line.md, run from top to bottom; and the page of every option, which is made of the code."""

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import httpx2
import msgspec
import pytest

from mainspring.cli import exits, reference
from mainspring.cli.profiles import Profiles
from tests.support.processes import free_port

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "how-to" / "command-line.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


# It runs some thirty commands, each in a process of its own.
@pytest.mark.timeout(300)
def test_the_guide_works_as_it_is_written(tmp_path: Path) -> None:
    port = free_port()
    blocks = _BLOCK.findall(GUIDE)
    [code] = [text for kind, text in blocks if kind == "python"]
    (tmp_path / "tasks.py").write_text(code)
    binaries = Path(sys.executable).parent
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    environment = {
        **own,
        "PATH": f"{binaries}:{own['PATH']}",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "COLUMNS": "80",
    }
    with (tmp_path / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mainspring", "up", "tasks:app", "--port", str(port)],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        _until_it_answers(port, tmp_path / "up.log")
        printed = ""
        for kind, text in blocks:
            if kind == "sh":
                script = text.replace("7070", str(port))
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", script],
                    cwd=tmp_path,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, (script, done.stderr)
                printed = done.stdout
            elif kind == "text":
                assert printed == text
            elif kind == "toml":
                found = msgspec.convert(tomllib.loads(text), Profiles)
                assert [found.get(name).tenant for name in found.profiles] == ["acme", ""]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def test_the_guide_and_the_reference_say_the_same_of_exit_codes() -> None:
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", GUIDE, re.MULTILINE)]
    assert codes == [code for code in exits.WORDS if code < 100]


def test_the_reference_is_what_the_code_says() -> None:
    if (DOCS / "reference" / "cli.md").read_text() != reference.page():
        pytest.fail("docs/reference/cli.md is not what the code says: run make reference", pytrace=False)


def test_every_command_has_an_example_and_every_option_a_help() -> None:
    page = reference.page()
    for part in page.split("\n## ")[3:]:
        name = part.partition("\n")[0]
        if name not in ("scheduler", "migrate"):
            assert "```\n" in part, name
    assert "|  |" not in page


def _until_it_answers(port: int, log: Path) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            httpx2.get(f"http://127.0.0.1:{port}/healthz", timeout=1)
            return
        except httpx2.TransportError:
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
