"""The code of the page on submitting from an application, against a running node."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.doc_blocks import write_blocks
from tests.support.processes import START_SECONDS, free_port
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs/guides/submit-jobs.md"


@pytest.mark.system
@pytest.mark.timeout(900)
def test_the_code_of_the_applications_page_works(tmp_path: Path) -> None:
    write_blocks(PAGE, tmp_path)
    port = free_port()
    environment = {
        **os.environ,
        "MAINSPRING_PORT": str(port),
        "MAINSPRING_URL": f"http://127.0.0.1:{port}",
        "PYTHONUNBUFFERED": "1",
    }

    def run(*words: str) -> str:
        found = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert found.returncode == 0, (words, found.stdout, found.stderr)
        return found.stdout

    with (tmp_path / "up.log").open("wb") as log:
        # MAINSPRING_URL is for clients, and has no effect on a node.
        up = subprocess.Popen(
            [sys.executable, "-m", "mainspring", "up", "tasks:app"],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: _accepts(port), (tmp_path / "up.log").read_text, deadline=START_SECONDS)
        shop = run("-c", "import asyncio, shop; asyncio.run(shop.order())")
        assert shop.startswith("1 to Lyon\n100 shipped\n")
        assert "ValueError: where to?" in shop
        assert run("script.py") == "2 to Brest\n"
        assert run("remote.py") == "3 to Arles\n"
    finally:
        up.terminate()
        assert up.wait(120) == 0
    web = "from fastapi.testclient import TestClient\nimport web\nwith TestClient(web.web) as c:\n    "
    assert '"run"' in run("-c", web + "print(c.post('/orders/5').text)")
    assert "to a@b.c" in run("-c", _RENAMED)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


_RENAMED = """
import asyncio, renamed, tasks

async def main():
    old = await tasks.send.submit("a@b.c", "hi")
    await tasks.app.close()
    async with renamed.app.running():
        print(await renamed.app.handle(old.id).result("2m"))

asyncio.run(main())
"""
