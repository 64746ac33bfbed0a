"""Run an example by its one command, in a folder of its own."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from contextlib import suppress
from pathlib import Path

import httpx2

from tests.support.processes import PYTHONPATH, ROOT, free_port
from tests.support.waiting import DEADLINE_SECONDS, eventually


async def run_example(name: str, folder: Path, **environment: str) -> str:
    """Run an example until it ends, which must succeed; its output."""
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
    """The output of the read-only commands of its README, in the folder where it was run."""
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


async def run_on_broker(name: str, folder: Path, store: str, broker: str) -> str:
    """Run an example with a broker; its output. Its workers must have claimed runs by hints."""
    # Neighbors: looking at all ports between ten random ones takes longer than the example.
    first = min(free_port(), 65_000)
    ports = range(first, first + 20)
    running = asyncio.create_task(
        run_example(
            name,
            folder,
            MAINSPRING_STORE=store,
            MAINSPRING_DISPATCH_BROKER=broker,
            MAINSPRING_METRICS_FIRST_PORT=str(ports[0]),
            MAINSPRING_METRICS_LAST_PORT=str(ports[-1]),
        )
    )
    claimed = 0.0
    async with httpx2.AsyncClient(timeout=DEADLINE_SECONDS) as client:

        async def ended() -> bool:
            nonlocal claimed
            for port in ports:
                with suppress(httpx2.HTTPError):
                    shown = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
                    found = re.findall(r"^mainspring_dispatch_claimed_total\{.*\} (.*)$", shown, re.MULTILINE)
                    claimed = max(claimed, *map(float, found), 0)
            return running.done()

        await eventually(ended, deadline=250)
    output = await running
    assert claimed > 0, output
    return output
