"""An example as a newcomer starts it: one command, in a folder of its own."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

from mainspring.domain.dispatch import check_engine
from mainspring.domain.errors import Invalid
from tests.support.processes import PYTHONPATH, ROOT, free_port
from tools.services import all_services


async def run_example(name: str, folder: Path, **environment: str) -> str:
    """What it said. It must have ended by itself, and well."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"examples.{name}", "--fast"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "MAINSPRING_PORT": str(free_port()), **environment},
        stdout=PIPE,
        stderr=STDOUT,
    )
    try:
        said = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            # As by Ctrl-C: it ends its own processes.
            process.send_signal(signal.SIGINT)
            await process.wait()
    log = folder / f"{name}.log"
    assert process.returncode == 0, said + (log.read_text() if log.exists() else "")
    return said


async def commands_of(name: str, folder: Path) -> str:
    """What the commands of its README answer that only look, in the folder where it was run."""
    page = (ROOT / "examples" / name / "README.md").read_text()
    lines = re.findall(r"^mainspring ((?:jobs|runs|datacenters) .*|datacenters)$", page, re.MULTILINE)
    return "".join(await asyncio.gather(*(_answer(name, folder, line) for line in lines)))


async def _answer(name: str, folder: Path, line: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mainspring", *line.split()),
        cwd=folder,
        env={**os.environ, "MAINSPRING_CONFIG": str(ROOT / "examples" / name / "mainspring.toml")},
        stdout=PIPE,
        stderr=STDOUT,
    )
    answer = (await process.communicate())[0].decode()
    assert process.returncode == 0, f"{line}: {answer}"
    return answer


def engine_of(*services: str) -> str:
    """The first of these servers that can bring hints here."""
    for service in services:
        try:
            check_engine(all_services()[service].address(), "engine")
        except Invalid:
            continue
        return service
    raise AssertionError(f"none of {services} is known")
