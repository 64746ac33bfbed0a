"""Every example of docs/reference/api.md, run as it stands against a real ``mainspring up``."""

import asyncio
import json
import os
import re
import shutil
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mainspring.http.api_store import ApiStore
from tests.api.conftest import Service, memory_only
from tests.support.processes import Processes, api_client, free_port
from tests.support.servers import not_here
from tests.support.waiting import eventually

PAGE = (Path(__file__).parents[2] / "docs/reference/api.md").read_text()
#: The shell variables that the page uses for values of earlier answers.
NAMES = {
    "jobId": "JOB",
    "runId": "RUN",
    "workerId": "WORKER",
    "fence": "FENCE",
    "claim": "CLAIM",
    "fingerprint": "FINGERPRINT",
    "keyId": "KEYID",
}
#: A value of one of these forms stands for any other value of that form.
FORMS = (
    r"[0-9a-f]{32}",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z",
    r"[0-9a-f]{16}",
    r"[0-9a-z]{12}",
    r"\d+",
    r"mailer#\d+",
    r"/v1/runs/[0-9a-f]{32}/logs",
)
#: Numbers that differ between runs of the examples.
LOOSE = {"claim", "fence", "position", "nextAfter", "lagMs"}
MORE = "…"


def examples() -> list[tuple[str, str, str]]:
    """(command, kind of answer, answer) in the order of the page."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    kinds = [kind for kind, _ in blocks]
    assert kinds[::2] == ["sh"] * (len(kinds) // 2), "a command without its answer, or an answer without its command"
    return [(command, kind, answer) for (_, command), (kind, answer) in zip(blocks[::2], blocks[1::2], strict=True)]


def find_values(answer: Any) -> Iterator[tuple[str, str]]:
    """Values that later commands refer to. Only the first item of a list counts."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name in NAMES:
                yield NAMES[name], str(value)
            else:
                yield from find_values(value)
    elif isinstance(answer, list) and answer:
        yield from find_values(answer[0])


def check(shown: Any, real: Any, where: str, name: str = "") -> None:
    """Check that the real answer has the shown fields and values, and others only where the page shows "…"."""
    if isinstance(shown, dict):
        assert isinstance(real, dict), where
        more = shown.get(MORE) == MORE
        fields = {key for key in shown if key != MORE}
        assert fields <= real.keys(), f"{where}: {fields - real.keys()} are not in the answer {real}"
        assert more or fields == real.keys(), f"{where}: {real.keys() - fields} are in the answer too"
        for key in fields:
            check(shown[key], real[key], f"{where}.{key}", key)
    elif isinstance(shown, list):
        assert isinstance(real, list), where
        assert len(shown) == len(real), f"{where}: {real}"
        for number, (one, other) in enumerate(zip(shown, real, strict=True)):
            check(one, other, f"{where}[{number}]", name)
    elif isinstance(shown, str) and MORE in shown:
        assert isinstance(real, str), where
        assert real.startswith(shown.partition(MORE)[0]), f"{where}: {real}"
    elif isinstance(shown, str) and any(re.fullmatch(form, shown) for form in FORMS):
        assert isinstance(real, str), where
        form = next(form for form in FORMS if re.fullmatch(form, shown))
        assert re.fullmatch(form, real), f"{where}: {real!r} is not like {shown!r}"
    elif name in LOOSE:
        assert isinstance(real, int | float), where
    else:
        assert (type(shown), shown) == (type(real), real), where


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    number = free_port()
    logs = tmp_path / "logs"
    logs.mkdir()
    async with Processes(str(tmp_path / "mainspring.db"), logs) as processes:
        processes.start("up", "--port", str(number))
        async with api_client(number) as client:

            async def has_worker() -> bool:
                with suppress(httpx2.TransportError):
                    return bool((await client.get("/v1/workers")).json()["items"])
                return False

            await eventually(has_worker, processes.logs)
        yield number


async def run_command(command: str, variables: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        "sh", "-euc", command, env={**os.environ, **variables}, stdout=PIPE, stderr=PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, f"{command}\n{errors.decode()}"
    return out.decode()


async def read_events(command: str, variables: dict[str, str], expected: list[str]) -> str:
    """Run a command that streams events until it has printed the expected lines, maybe among others."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-euc", f"exec {command}", env={**os.environ, **variables}, stdout=PIPE
    )
    assert process.stdout is not None
    text = ""
    while not (line := await process.stdout.readline()).isspace() or not set(expected) <= set(text.splitlines()):
        assert line, f"{command} ended after:\n{text}"
        text += line.decode()
    process.kill()
    await process.communicate()
    return text


@pytest.mark.slow
async def test_every_example_of_the_api_reference(port: int) -> None:
    if shutil.which("curl") is None:
        not_here("curl is not installed")
    variables: dict[str, str] = {}
    for command, kind, shown in examples():
        script = command.replace("localhost:7070", f"127.0.0.1:{port}").replace("curl ", "curl -sS ")
        if kind == "json":
            answer = json.loads(await run_command(script, variables))
            variables |= dict(reversed(list(find_values(answer))))
            check(json.loads(shown), answer, command.strip())
        else:
            # Runs of earlier examples may add events before and after.
            text = await read_events(script.replace("--max-time 2 ", ""), variables, shown.splitlines())
            variables |= dict.fromkeys(["EVENT"], re.findall(r"^id: (.+)$", text, re.MULTILINE)[-1])


def test_every_resource_has_an_example() -> None:
    from mainspring.config.resources import RESOURCES

    commands = "".join(command for command, _, _ in examples())
    for resource in RESOURCES:
        paths = [re.sub(r"\{\w+\}", "[^ /?]+", operation.path) for operation in resource.operations]
        assert any(re.search(f"localhost:7070{path}[ '\"?\n]", commands) for path in paths), resource.tag


@memory_only
async def test_the_payloads_of_the_built_in_tasks_are_accepted(store: ApiStore, tmp_path: Path) -> None:
    (tmp_path / "cleanup.py").touch()
    page = (Path(__file__).parents[2] / "docs/reference/tasks.md").read_text()
    http, shell, _ = (json.loads(text) for text in re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    async with Service(auth=False, scripts=tmp_path, store=store).client() as client:
        for task, payload in (("http", http), ("shell", shell)):
            answer = await client.post("/v1/jobs", json={"task": task, "payload": payload})
            assert answer.status_code == 201, answer.text
