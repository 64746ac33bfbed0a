"""Every example of docs/reference/api.md, run as it stands against a real ``mainspring up``."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mainspring.api.context import ApiStore
from tests.api.conftest import Service, free_port
from tests.support.processes import Processes
from tests.support.servers import not_here

PAGE = (Path(__file__).parents[2] / "docs/reference/api.md").read_text()
#: What the page calls the values of earlier answers.
NAMES = {
    "jobId": "JOB",
    "runId": "RUN",
    "workerId": "WORKER",
    "fence": "FENCE",
    "claim": "CLAIM",
    "fingerprint": "FINGERPRINT",
    "keyId": "KEYID",
}
#: Values of one of these forms stand for any other of it.
FORMS = (
    r"[0-9a-f]{32}",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z",
    r"[0-9a-f]{16}",
    r"[0-9a-z]{12}",
    r"\d+",
    r"mailer#\d+",
    r"/v1/runs/[0-9a-f]{32}/logs",
)
#: Numbers that differ from one time to the next.
LOOSE = {"claim", "fence", "position", "nextAfter", "lagMs"}
MORE = "…"


def examples() -> list[tuple[str, str, str]]:
    """(command, kind of answer, answer) in the order of the page."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    kinds = [kind for kind, _ in blocks]
    assert kinds[::2] == ["sh"] * (len(kinds) // 2), "a command without its answer, or an answer without its command"
    return [(command, kind, answer) for (_, command), (kind, answer) in zip(blocks[::2], blocks[1::2], strict=True)]


def values_of(answer: Any) -> Iterator[tuple[str, str]]:
    """What later commands refer to. Of a list the first counts."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name in NAMES:
                yield NAMES[name], str(value)
            else:
                yield from values_of(value)
    elif isinstance(answer, list) and answer:
        yield from values_of(answer[0])


def check(shown: Any, real: Any, where: str, name: str = "") -> None:
    """The real answer has the shown fields with the shown values, and no other unless the page says so."""
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
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{number}") as client, asyncio.timeout(30):
            while not await ready(client):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        yield number


async def ready(client: httpx2.AsyncClient) -> bool:
    try:
        # The worker is there when its queue is.
        return bool((await client.get("/v1/workers")).json()["items"])
    except httpx2.TransportError:
        return False


async def test_every_example(port: int) -> None:
    if shutil.which("curl") is None:
        not_here("curl is not installed")
    variables: dict[str, str] = {}
    for command, kind, shown in examples():
        script = command.replace("localhost:7070", f"127.0.0.1:{port}").replace("curl ", "curl -sS ")
        process = await asyncio.create_subprocess_exec(
            "sh", "-euc", script, env={**os.environ, **variables}, stdout=-1, stderr=-1
        )
        out, errors = await process.communicate()
        assert process.returncode == (28 if "--max-time" in command else 0), f"{command}\n{errors.decode()}"
        text = out.decode()
        if kind == "json":
            answer = json.loads(text)
            variables |= dict(reversed(list(values_of(answer))))
            check(json.loads(shown), answer, command.strip())
        else:
            told = [line for line in text.splitlines() if line.startswith("event: ")]
            # What the examples before have set going may still be on its way, in whatever time.
            wanted = shown.split("\n")[:-1]
            assert told[: len(wanted)] == wanted, f"{command}\n{text}"
            variables |= dict.fromkeys(["EVENT"], re.findall(r"^id: (.+)$", text, re.MULTILINE)[-1])


def test_every_resource_has_an_example() -> None:
    from mainspring.api.resources import RESOURCES

    commands = "".join(command for command, _, _ in examples())
    for resource in RESOURCES:
        paths = [re.sub(r"\{\w+\}", "[^ /?]+", operation.path) for operation in resource.operations]
        assert any(re.search(f"localhost:7070{path}[ '\"?\n]", commands) for path in paths), resource.tag


@pytest.mark.parametrize("store_kind", ["memory"], indirect=True)
async def test_the_payloads_of_the_built_in_tasks_are_accepted(store: ApiStore, tmp_path: Path) -> None:
    (tmp_path / "cleanup.py").touch()
    page = (Path(__file__).parents[2] / "docs/reference/tasks.md").read_text()
    http, shell, _ = (json.loads(text) for text in re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    async with Service(auth=False, scripts=tmp_path, store=store).client() as client:
        for task, payload in (("http", http), ("shell", shell)):
            answer = await client.post("/v1/jobs", json={"task": task, "payload": payload})
            assert answer.status_code == 201, answer.text
