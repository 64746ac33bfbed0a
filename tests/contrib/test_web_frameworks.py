"""The FastAPI and Flask pages work: their code, their commands, and the answers that they show."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.support.command_line import terminate, wait_for_http
from tests.support.doc_blocks import write_blocks
from tests.support.processes import PYTHONPATH, START_SECONDS, free_port
from tests.support.waiting import DEADLINE_SECONDS, wait_until

DOCS = Path(__file__).parents[2] / "docs/guides"


class Page:
    """The code of a page in a folder, and its commands on a free port."""

    def __init__(self, name: str, folder: Path) -> None:
        self.text = (DOCS / name).read_text()
        self.folder = folder
        self.log = folder / "processes.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{PYTHONPATH}", "PYTHONUNBUFFERED": "1"}
        write_blocks(DOCS / name, folder)

    def command(self, start: str) -> list[str]:
        """The command of the page that starts so, as a module of this Python."""
        [found] = re.findall(rf"^({start} .*)$", self.text, re.MULTILINE)
        words = shlex.split(found.replace("8000", str(self.port)))
        return [sys.executable, "-m", *words]

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=log, stderr=log)

    def answers(self) -> list[dict[str, str]]:
        return [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE)]

    def check_requests(self, form: bool) -> None:
        """Send what the page sends, and compare the answers with those that it shows."""
        wait_until(self._listens, lambda: self.log.read_text(), deadline=START_SECONDS)
        submitted, ended = self.answers()
        [data] = re.findall(r"curl -d ('.*?'|\S+)", self.text)
        [body] = shlex.split(data)
        kind = "application/x-www-form-urlencoded" if form else "application/json"
        answer = httpx2.post(f"{self.url}/users", content=body, headers={"content-type": kind}, timeout=START_SECONDS)
        assert answer.status_code == 202
        assert answer.json().keys() == submitted.keys()
        run = answer.json()["run"]

        def show() -> dict[str, str] | None:
            # On a busy machine the page may wait in vain for the result.
            found = httpx2.get(f"{self.url}/runs/{run}", timeout=START_SECONDS)
            return found.json() if found.status_code == 200 else None

        # The first answer has the state after the result, not the state while the page waited for it.
        assert wait_until(show, lambda: self.log.read_text()) == ended

    def check_tests(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_web.py"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed" in done.stdout

    def _listens(self) -> bool:
        try:
            return httpx2.get(self.url, timeout=DEADLINE_SECONDS).status_code == 404
        except httpx2.TransportError:
            return False


@pytest.mark.slow
def test_the_fastapi_page(tmp_path: Path) -> None:
    page = Page("fastapi.md", tmp_path)
    server = page.start(*page.command("granian"))
    try:
        page.check_requests(form=False)
        signed_out = httpx2.get(f"{page.url}/ops/jobs/", follow_redirects=True, timeout=DEADLINE_SECONDS)
        assert signed_out.status_code == 200
        assert str(signed_out.url).startswith(f"{page.url}/ops/jobs/sign-in")
    finally:
        assert terminate(server) == 0


@pytest.mark.slow
def test_the_flask_page(tmp_path: Path) -> None:
    page = Page("flask.md", tmp_path)
    [command] = re.findall(r"^(mainspring up .*)$", page.text, re.MULTILINE)
    page.environment["MAINSPRING_PORT"] = str(port := free_port())
    up = page.start(sys.executable, "-m", *shlex.split(command))
    server = page.start(*page.command("flask"))
    try:
        wait_for_http(f"http://127.0.0.1:{port}", up, page.log)
        page.check_requests(form=True)
    finally:
        server.terminate()
        assert terminate(up) == 0
        server.wait()


@pytest.mark.parametrize("name", ["fastapi.md", "flask.md"])
def test_the_tests_of_the_pages_pass(name: str, tmp_path: Path) -> None:
    Page(name, tmp_path).check_tests()
