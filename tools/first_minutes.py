"""Plays the quickstart of README.md and first-ten-minutes.md in an empty folder, from a wheel, and records the output.

python -m tools.first_minutes writes what the commands print into both pages. A test plays them, too, and compares.
"""

import difflib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tools import dist

ROOT = dist.ROOT
#: Each page, and the heading at which its quickstart ends.
PAGES = {ROOT / "README.md": "\n## ", ROOT / "docs/get-started/first-ten-minutes.md": "\n## Where to go"}
#: A block of text is the output of the block before it, or what ``mainspring up`` has logged of a task since then.
_BLOCK = re.compile(r"^(?:<!-- log: (\w+) -->\n)?```(python|sh|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w+\.py)\n")
_PORT = "7070"
_READY = "mainspring: ready\n"
#: A line of the log begins with its time.
_LOGGED = re.compile(r"^\d\d:\d\d:\d\d ", re.MULTILINE)
_SECONDS = 300
_LOOK_SECONDS = 0.05
#: What differs from one play to the next.
_MASKS = (
    (r"\b[0-9a-f]{32}\b|\b[0-9a-f]{12}\b", "ID"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z|\d\d:\d\d:\d\d\b", "TIME"),
    (r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d TIME [+-]\d\d:\d\d", "TIME"),
    (r"\bin \d+ (?:second|minute|hour|day)s?\b", "in SPAN"),
    (r"\b[\d.]+(?:us|ms|s|m|h|d)\b", "SPAN"),
    (r"(?m)^mainspring \d\S*$", "mainspring VERSION"),
    (r"\b[\w.-]+:\d{3,}\b(?!/)", "PROCESS"),
    (r"[ \t]+", " "),
    (r"(?m) +$", ""),
)


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    #: The task whose log a block of text shows.
    log: str
    #: Where the text stands in the page.
    start: int
    end: int


def blocks_of(page: str, end: str) -> Iterator[Block]:
    until = page.find(end, 1) if end in page[1:] else len(page)
    for found in _BLOCK.finditer(page, 0, until):
        yield Block(found[2], found[3], found[1] or "", found.start(3), found.end(3))


@dataclass(frozen=True)
class Output:
    """What a page shows, and what was printed this time."""

    block: Block
    printed: str
    #: Whether the long-running ``mainspring up`` has printed it.
    logged: bool


class Player:
    """An empty folder in which the blocks of a page are played, as a reader would paste them."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        self._wheel = wheel
        self._port = str(_free_port())
        self._log = folder / "up.log"
        self._up: subprocess.Popen[bytes] | None = None
        self._file: Path | None = None
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAINSPRING_"))}
        self._environment = {
            **kept,
            "PATH": f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "MAINSPRING_PORT": self._port,
            "MAINSPRING_LOG_FORMAT": "text",
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "110",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def play(self, page: str, end: str) -> Iterator[Output]:
        """Play every block in order, and yield the output of those that the page shows."""
        printed, logged, seen = "", False, 0
        for block in blocks_of(page, end):
            if block.kind == "python":
                self._write(block.text)
            elif block.kind == "sh":
                logged = block.text.startswith("mainspring up")
                seen = 0 if logged else len(self._logged())
                printed = self._run(block.text)
            elif block.log:
                yield Output(block, self._wait_for_log(block.log, seen), True)
            else:
                yield Output(block, printed, logged)

    def _write(self, text: str) -> None:
        named = _FILE.match(text)
        if named is not None:
            self._file = self._folder / named[1]
            self._file.write_text(text)
        else:
            assert self._file is not None, "the first block of Python does not say which file it is"
            with self._file.open("a") as file:
                file.write(f"\n\n{text}")

    def _run(self, text: str) -> str:
        if "pip install mainspring" in text:
            dist.install(self._wheel, self._folder / ".venv")
            return ""
        if text.startswith("mainspring up"):
            return self._start(text)
        done = subprocess.run(
            ["bash", "-ec", text.replace(_PORT, self._port)],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{text}{done.stdout}\n{self._logged()}")
        return self._as_shown(done.stdout)

    def _start(self, text: str) -> str:
        """Start ``mainspring up`` in the place of one that runs, and return what it prints until it is ready."""
        self._stop()
        with self._log.open("wb") as log:
            self._up = subprocess.Popen(text.split(), cwd=self._folder, env=self._environment, stdout=log, stderr=log)
        until = time.monotonic() + _SECONDS
        while not self._is_ready():
            if self._up.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{text}{self._logged()}")
            time.sleep(_LOOK_SECONDS)
        # Without log lines: the first runs may begin before it is ready, or after.
        shown, ready, _ = self._logged().partition(_READY)
        return "".join(line for line in shown.splitlines(keepends=True) if not _LOGGED.match(line)) + ready

    def _is_ready(self) -> bool:
        return _READY in self._logged()

    def _stop(self) -> None:
        """As Ctrl-C does."""
        if self._up is not None and self._up.poll() is None:
            self._up.send_signal(signal.SIGINT)
            self._up.wait(_SECONDS)
        self._up = None

    def _logged(self) -> str:
        return self._as_shown(self._log.read_text()) if self._log.exists() else ""

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
                raise RuntimeError(f"no run of {task} has succeeded:\n{self._logged()}")
            time.sleep(_LOOK_SECONDS)

    def _as_shown(self, text: str) -> str:
        return text.replace(self._port, _PORT).replace(str(self._folder), ".")


def mask(text: str) -> str:
    """The text without what differs each time: ids, times, durations and versions."""
    for pattern, word in _MASKS:
        text = re.sub(pattern, word, text)
    return text.strip()


def find_facts(text: str) -> set[str]:
    """What a log must have, however its lines look: addresses, names of tasks and schedules, attempts, errors."""
    return set(
        re.findall(
            r"http://[^\s)]+|attempt=\d+/\d+|mainspring: ready|(?<=task=)\w+|(?<=schedule )\w+|\w+Error: [^\"'\n]+",
            text,
        )
    )


def find_difference(output: Output) -> str:
    """What the page shows and this play did not print; nothing if they are alike."""
    if output.logged:
        return ", ".join(sorted(fact for fact in find_facts(output.block.text) if fact not in output.printed))
    shown, printed = mask(output.block.text), mask(output.printed)
    return "" if shown == printed else "\n".join(difflib.unified_diff(shown.splitlines(), printed.splitlines()))


def record(page: Path, end: str, wheel: Path) -> None:
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder, Player(Path(folder), wheel) as player:
        outputs = list(player.play(text, end))
    for output in reversed(outputs):
        printed = output.printed.rstrip("\n")
        shown = "\n".join(line.rstrip() for line in printed.splitlines())
        text = f"{text[: output.block.start]}{shown}\n{text[output.block.end :]}"
    page.write_text(text)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        [wheel] = dist.build(Path(folder), "--wheel")
        for page, end in PAGES.items():
            record(page, end, wheel)
            print(f"{page.relative_to(ROOT)}: recorded, {time.monotonic() - began:.0f} s after the start")
    return 0


if __name__ == "__main__":
    sys.exit(main())
