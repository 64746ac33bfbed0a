"""Play the blocks of a page in a folder of its own, as a reader pastes them."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from tools import dist
from tools.pages.blocks import ROOT, Block, PagePlan, find_end, read_blocks
from tools.pages.outputs import Output, find_ids

#: Processes that run until they are stopped.
_PROCESS = re.compile(r"(?:[A-Z_]+=\S* )*mainspring (up|worker|scheduler|api)\b(?!.* --(?:drain|help|once))")
_READY = "mainspring: ready\n"
#: A line of the log begins with its time.
_LOGGED = re.compile(r"^\d\d:\d\d:\d\d ", re.MULTILINE)
_PORTS = ("7070", "7071", "7170")
_SECONDS = 300
_LOOK_SECONDS = 0.05
#: Variables that a shell sets by itself.
_SHELL = {"PWD", "OLDPWD", "SHLVL", "_"}


class PageError(Exception):
    """A command of a page failed."""


class Player:
    """An empty folder, and a shell whose variables stay from block to block."""

    def __init__(self, folder: Path, plan: PagePlan, store: str = "", wheel: Path | None = None) -> None:
        self._folder = folder / "page"
        self._folder.mkdir()
        # A terminal shows no progress meter beside the answer.
        (folder / ".curlrc").write_text("silent\nshow-error\n")
        self._variables = folder / "variables.sh"
        self._logs = folder
        self._plan = plan
        self._store = store
        self._wheel = wheel
        self._ports = dict(zip(_PORTS, map(str, _free_ports(len(_PORTS))), strict=True))
        self._up: subprocess.Popen[bytes] | None = None
        self._others: list[subprocess.Popen[bytes]] = []
        #: How many of them the plan started: they run until all its pages are played.
        self._prepared = 0
        self._file: Path | None = None
        #: Words of the page, and what they are in this play.
        self._words: dict[str, str] = {}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAINSPRING_"))}
        binaries = self._folder / ".venv" / "bin" if wheel else Path(sys.executable).parent
        self._environment = {
            **kept,
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "MAINSPRING_PORT": self._ports["7070"],
            "MAINSPRING_METRICS_FIRST_PORT": self._ports["7170"],
            "MAINSPRING_METRICS_LAST_PORT": str(min(int(self._ports["7170"]) + 30, 65535)),
            "MAINSPRING_LOG_FORMAT": "text",
            "XDG_CONFIG_HOME": str(folder / "config"),
            "CURL_HOME": str(folder),
            "LOGNAME": "ada",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": str(plan.columns),
            **({} if wheel else {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{self._folder}"}),
            **({"MAINSPRING_STORE": store} if store else {}),
            **plan.settings,
        }

    def __enter__(self) -> Self:
        try:
            self._prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        _stop(self._up)
        self._stop_others()

    def play(self, page: Path) -> Iterator[Output]:
        """Play every block in order, and yield the outputs: those that the page shows, and those that it does not."""
        text = page.read_text()
        blocks = [block for block in read_blocks(text) if block.start < find_end(text, self._plan.until)]
        printed, logged, seen = "", False, 0
        for number, block in enumerate(blocks):
            follower = blocks[number + 1] if number + 1 < len(blocks) else None
            if "not run" in block.marks or (
                not self._plan.until and block.kind in self._plan.tested_by and block.kind in ("sh", "text", "json")
            ):
                continue
            if block.kind == "sh":
                logged = bool(re.match(r"mainspring up\b", block.text))
                seen = 0 if logged else len(self._logged())
                printed = self._run(block, only_stdout=follower is not None and follower.kind == "json")
                if follower is None or not (follower.is_output or "log" in follower.marks):
                    yield Output(block, "" if "no output" in block.marks else printed)
            elif "log" in block.marks:
                yield Output(block, self._wait_for_log(block.marks["log"], seen), True)
            elif block.is_output:
                output = Output(block, printed, logged)
                self._words |= find_ids(output)
                yield output
            else:
                self._write(block)
        self._bash(self._plan.after, 0, only_stdout=False)
        self._stop_others(self._prepared)

    def _stop_others(self, kept: int = 0) -> None:
        while len(self._others) > kept:
            _stop(self._others.pop())

    def _prepare(self) -> None:
        for name, source in self._plan.files.items():
            target = self._folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / source, target)
        for process in self._plan.processes:
            if process.startswith("up "):
                self._start_up(f"mainspring {process}")
            else:
                self._start(f"mainspring {process}", process.partition(" ")[0])
        self._prepared = len(self._others)
        if self._plan.before:
            before = set(self._read_variables())
            self._bash(self._plan.before, 0, only_stdout=False)
            self._words |= {name: value for name, value in self._read_variables().items() if name not in before}

    def _write(self, block: Block) -> None:
        if block.file:
            self._file = self._folder / block.file
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(block.text)
        elif block.kind == "python" and self._file is not None and self._file.suffix == ".py":
            with self._file.open("a") as file:
                file.write(f"\n\n{block.text}")

    def _run(self, block: Block, *, only_stdout: bool) -> str:
        """Run a block, and return what it prints; of a process, what it prints until it is ready."""
        if self._wheel is not None and "pip install mainspring" in block.text:
            dist.install(self._wheel, self._folder / ".venv")
            return ""
        script, printed = [], ""
        expected = int(block.marks.get("exit", "0"))
        for line in self._translate(block.text).splitlines(keepends=True):
            process = _PROCESS.match(line)
            if process is None:
                script.append(line)
                continue
            self._bash("".join(script), expected, only_stdout=only_stdout)
            script = []
            printed = self._start_up(line) if process[1] == "up" else self._start(line, process[1])
        if "".join(script).strip():
            printed = self._bash("".join(script), expected, only_stdout=only_stdout)
        return printed

    def _translate(self, text: str) -> str:
        """The text of a page with the ports, ids and names of this play."""
        for port, real in self._ports.items():
            text = re.sub(rf"(?<=[:= ]){port}\b", real, text)
        for word, real in self._words.items():
            text = re.sub(rf"(?<![$\w{{-]){re.escape(word)}(?![\w=])", real, text)
        return text

    def _bash(self, text: str, expected: int, *, only_stdout: bool) -> str:
        if not text.strip():
            return ""
        # Without pipefail, as in a terminal: `head` ends the command before it.
        script = f"set -e\n{self._load()}set -a\n{text}\nset +a; export -p > {self._variables}\n"
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if only_stdout else subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            printed, errors = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, errors = process.communicate()
            raise PageError(f"{text}did not end in {_SECONDS} s\n{printed}{self._logged()}") from None
        if process.returncode not in (expected, *self._plan.accepts):
            raise PageError(f"{text}exit code {process.returncode}\n{printed}{errors or ''}{self._logged()}")
        return self._as_shown(printed)

    def _load(self) -> str:
        return f". {self._variables}\n" if self._variables.exists() else ""

    def _read_variables(self) -> Mapping[str, str]:
        if not self._variables.exists():
            return {}
        done = subprocess.run(
            ["bash", "-c", f"{self._load()}env -0"], env={}, stdout=subprocess.PIPE, text=True, check=True
        )
        found = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
        return {name: value for name, value in found.items() if name not in self._environment and name not in _SHELL}

    def _start_up(self, text: str) -> str:
        """Start ``mainspring up`` in the place of one that runs."""
        _stop(self._up)
        self._up, printed = self._launch(text, self._logs / "up.log")
        return printed

    def _start(self, text: str, name: str) -> str:
        process, printed = self._launch(text, self._logs / f"{name}-{len(self._others)}.log")
        self._others.append(process)
        return printed

    def _launch(self, text: str, log_file: Path) -> tuple["subprocess.Popen[bytes]", str]:
        assignments, _, command = text.strip().partition("mainspring ")
        script = f"{self._load()}exec env {assignments}mainspring {command}"
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", script], cwd=self._folder, env=self._environment, stdout=log, stderr=log
            )
        until = time.monotonic() + _SECONDS
        while _READY not in (logged := log_file.read_text()):
            if process.poll() is not None or time.monotonic() > until:
                _stop(process)
                raise PageError(f"{text}{logged}")
            time.sleep(_LOOK_SECONDS)
        # Without log lines: the first runs may begin before it is ready, or after.
        shown, ready, _ = self._as_shown(logged).partition(_READY)
        lines = [line for line in shown.splitlines(keepends=True) if not _LOGGED.match(line)]
        return process, "".join(lines) + ready

    def _logged(self) -> str:
        log = self._logs / "up.log"
        return self._as_shown(log.read_text()) if log.exists() else ""

    def _wait_for_log(self, task: str, seen: int) -> str:
        """The entries about the task, up to the one that says that a run of it has succeeded."""
        until = time.monotonic() + _SECONDS
        while True:
            logged = self._logged()[seen:]
            entries = [entry for entry in re.split(rf"(?m)^(?={_LOGGED.pattern})", logged) if f"={task} " in entry]
            succeeded = next((at for at, entry in enumerate(entries) if "succeeded" in entry), None)
            if succeeded is not None:
                return "".join(entries[: succeeded + 1])
            if time.monotonic() > until:
                raise PageError(f"no run of {task} has succeeded:\n{self._logged()}")
            time.sleep(_LOOK_SECONDS)

    def _as_shown(self, text: str) -> str:
        for port, real in self._ports.items():
            text = re.sub(rf"\b{real}\b", port, text)
        if self._store:
            text = text.replace(self._store, "postgresql://mainspring@db/jobs")
        text = text.replace(f"{socket.gethostname()}:", "node-1:")
        return text.replace(f"{self._folder}/", "").replace(str(self._folder), ".")


def record(page: Path, outputs: list[Output]) -> None:
    """Write the outputs into the page, after the command if the page does not show one."""
    text = page.read_text()
    for output in sorted(outputs, key=lambda one: one.block.start, reverse=True):
        block = output.block
        lines = [line.rstrip() for line in output.printed.rstrip("\n").splitlines()]
        shown = "".join(f"{block.indent}{line}".rstrip() + "\n" for line in lines)
        if block.kind == "sh":
            fence = f"{block.indent}```\n"
            end = block.end + len(fence)
            text = f"{text[:end]}\n{block.indent}```text\n{shown}{fence}{text[end:]}"
        else:
            text = f"{text[: block.start]}{shown}{text[block.end :]}"
    page.write_text(text)


def _stop(process: "subprocess.Popen[bytes] | None") -> None:
    """As Ctrl-C does."""
    if process is not None and process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(server.getsockname()[1]) for server in servers]
    finally:
        for server in servers:
            server.close()
