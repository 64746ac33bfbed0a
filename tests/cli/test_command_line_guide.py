"""docs/guides/command-line.md, run from top to bottom, and the reference page, which is generated from the code."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from mainspring.cli import exits, reference
from mainspring.cli.client.profiles import Profiles
from tests.support.command_line import terminate, wait_for_http
from tests.support.processes import free_port

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "guides" / "command-line.md").read_text()
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


# It runs some thirty commands, each in its own process.
@pytest.mark.timeout(600)
def test_the_commands_of_the_guide_print_what_it_shows(tmp_path: Path) -> None:
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
        wait_for_http(f"http://127.0.0.1:{port}", process, tmp_path / "up.log")
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
        terminate(process)


def test_the_guide_lists_every_exit_code() -> None:
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", GUIDE, re.MULTILINE)]
    assert codes == [code for code in exits.WORDS if code < 100]


def test_the_reference_page_is_up_to_date() -> None:
    if (DOCS / "reference" / "cli.md").read_text() != reference.page():
        pytest.fail("docs/reference/cli.md is not what the code says: run make reference", pytrace=False)


def test_every_command_has_an_example_and_every_option_a_help_text() -> None:
    page = reference.page()
    for part in page.split("\n## ")[3:]:
        name = part.partition("\n")[0]
        if name not in ("scheduler", "migrate"):
            assert "```\n" in part, name
    assert "|  |" not in page
