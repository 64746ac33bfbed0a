"""The guides to built-in tasks and to secrets: every block runs or is parsed."""

import asyncio
import importlib.util
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from mainspring.config.loading import load
from mainspring.config.sections.tasks import TasksSection
from mainspring.config.settings import Settings
from mainspring.config.tasks import make_builtin_tasks
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.runs.handler_errors import GiveUp
from mainspring.core.ports.egress import Answer, OutgoingRequest
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.builtin import container, http, shell
from mainspring.core.worker.handler import AsyncHandler
from mainspring.core.worker.reporting.capture import capture
from tests.support.builders import a_held_run

DOCS = Path(__file__).parents[2] / "docs" / "guides"
KEY = "a key to sign with"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w.-]+)\n")


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    yield
    masks.forget()
    capture.show()


class Receiver:
    def __init__(self) -> None:
        self.sent: list[OutgoingRequest] = []

    async def send(self, request: OutgoingRequest) -> Answer:
        self.sent.append(request)
        return Answer(status=200, headers={}, body=b"")


class Reader:
    """Follows a page: writes its files, runs its commands, loads its settings and executes its jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = Settings()
        self.receiver = Receiver()
        self.modules: dict[str, ModuleType] = {}
        self.results: list[Any] = []

    async def follow(self, page: str) -> int:
        blocks = _BLOCK.findall((DOCS / page).read_text())
        for kind, text in blocks:
            file = _FILE.match(text)
            if file is not None:
                (self.folder / file[1]).write_text(text)
            if kind == "toml":
                self.read_settings(text)
            elif kind == "python":
                assert file is not None
                self.modules[file[1]] = _load_module(self.folder / file[1])
            elif kind == "json":
                await self.run(msgspec.json.decode(text))
            elif kind == "sh" and file is None:
                await asyncio.to_thread(subprocess.run, ["/bin/sh", "-ec", text], cwd=self.folder, check=True)
        return len(blocks)

    def read_settings(self, text: str) -> None:
        path = self.folder / "mainspring.toml"
        path.write_text(text.replace("/srv/scripts", str(self.folder)).replace('"secrets"', f'"{self.folder}/secrets"'))
        self.settings = load(environment={}, file=path)

    async def run(self, job: dict[str, Any]) -> None:
        task, payload = job["task"], msgspec.json.encode(job["payload"])
        tasks = make_builtin_tasks(self.settings)
        if task == "shell" and task not in tasks.names:
            # The page on secrets links to how commands and variables are allowed.
            tasks = make_builtin_tasks(
                msgspec.structs.replace(self.settings, tasks=TasksSection(commands=True, env=("API_KEY",)))
            )
        tasks.check(task, payload)
        if task == "container":
            return
        handler = tasks.handlers(lambda: self.receiver, now=lambda: int(time.time()) * SECOND)[task]
        assert isinstance(handler, AsyncHandler)
        result = await handler.invoke(msgspec.structs.replace(a_held_run(), payload=payload))
        self.results.append(msgspec.json.decode(result or b"null"))


def _load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_every_block_of_the_guide_to_http_and_shell_jobs_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_SECRET_HOOK_KEY", KEY)
    reader = Reader(tmp_path)
    assert await reader.follow("http-and-shell-jobs.md") >= 14
    plain, filled, signed, _ = reader.receiver.sent
    assert plain.body == b'{"order":17}'
    body = msgspec.json.decode(filled.body or b"")
    assert (body["order"], body["first"], body["tick"]) == (17, "a-1", None)
    is_genuine = reader.modules["receiver.py"].is_genuine
    assert is_genuine(signed.headers, signed.body, KEY)
    assert not is_genuine(signed.headers, signed.body, "another key")
    assert not is_genuine(signed.headers, (signed.body or b"") + b" ", KEY)
    assert not is_genuine({**signed.headers, "Idempotency-Key": "another"}, signed.body, KEY)
    late = re.sub("t=[0-9]+", "t=1", signed.headers["X-Mainspring-Signature"])
    assert not is_genuine({**signed.headers, "X-Mainspring-Signature": late}, signed.body, KEY)
    shown = [result["stdout"] for result in reader.results if "stdout" in result]
    assert shown[-1] == "hello from a job\n"
    assert shown[0].endswith("::progress 4/4 part 4\ndone\n")


async def test_every_block_of_the_guide_to_secrets_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "secrets.md").read_text()
    name, value = re.findall("export (MAINSPRING_SECRET_[A-Z_]+)='(.*)'", text)[0]
    monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    assert await reader.follow("secrets.md") >= 7
    (sent,) = reader.receiver.sent
    assert sent.headers["Authorization"] == f"Bearer {value}"
    assert "X-Mainspring-Signature" in sent.headers
    assert await reader.modules["tasks.py"].sync_orders() == len(value)
    monkeypatch.delenv(name)
    with pytest.raises(GiveUp, match="there is no API_KEY here") as refused:
        await reader.modules["tasks.py"].sync_orders()
    assert f"{type(refused.value).__name__}: {refused.value}".startswith(
        re.findall("`(SecretRefused: .*)`", text)[0]
    ), "as the page has it"
    assert os.environ.get(name) is None


def test_the_examples_of_the_task_reference_are_valid_payloads(tmp_path: Path) -> None:
    page = (DOCS.parent / "reference" / "tasks.md").read_text()
    allowed = TasksSection(scripts=str(tmp_path), containers="podman", images=("registry.example/*",))
    tasks = make_builtin_tasks(Settings(tasks=allowed))
    payloads = [text.replace("…", "x").encode() for kind, text in _BLOCK.findall(page) if kind == "json"]
    assert len(payloads) == 3
    for task, payload in zip(("http", "shell", "container"), payloads, strict=True):
        tasks.check(task, payload)
    assert {field for field in _list_fields() if f"`{field}`" not in page} == set()


def _list_fields() -> set[str]:
    calls = (http.HttpCall, shell.ShellCall, container.ContainerCall)
    return {field.encode_name for call in calls for field in msgspec.structs.fields(call)}
