"""Records commands of Mainspring in a terminal, and draws each as `docs/images/recording-NAME.svg`.

python -m tools.recordings

An SVG shows the lines in the order and, compressed, at the times at which they were printed. It loads nothing. Readers
who prefer reduced motion see all lines at once.
"""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from rich.text import Text

from tests.support.processes import free_port

IMAGES = Path(__file__).parents[1] / "docs" / "images"
_COLUMNS, _ROWS = 132, 40
_SECONDS = 120
#: How long the log of `mainspring up` is recorded after the first run.
_LOGGED_SECONDS = 12
#: Lines of the log that are shown: the newest.
_LOG_LINES = 8
_LONGEST_PAUSE = 1.2
_CHARACTER, _LINE, _MARGIN, _BAR = 7.8, 19, 18, 34
_APPLICATION = """\
from mainspring import Mainspring

app = Mainspring()


@app.task(retries=3)
async def send_welcome(user_id: int) -> str:
    return f"welcome, user {user_id}"


@app.task(queue="reports")
async def build_report(month: int) -> None: ...


@app.cron("*/5 * * * * *")
async def heartbeat() -> None: ...
"""
_STYLE = """
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d6d9e0;white-space:pre}
.window{fill:#14161c;stroke:#343946}.prompt{fill:#8b93a7}.dot{fill:#3d4352}.bold{font-weight:600}.dim{fill:#8b93a7}
.red{fill:#f4777f}.green{fill:#6cc788}.yellow{fill:#e3b341}.blue{fill:#79a8ff}.magenta{fill:#c99bff}.cyan{fill:#5cc6d6}
.line{opacity:0;animation:show .01s linear forwards}@keyframes show{to{opacity:1}}
@media (prefers-reduced-motion:reduce){.line{opacity:1;animation:none}}
"""
_COLORS = ("red", "green", "yellow", "blue", "magenta", "cyan")


class Line(NamedTuple):
    """A line of a terminal with its control sequences, and the second at which it was printed."""

    at: float
    text: str


class Terminal:
    """A command that runs in a terminal of its own."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        ours, theirs = pty.openpty()
        environment = {
            **os.environ,
            "COLUMNS": str(_COLUMNS),
            "LINES": str(_ROWS),
            "TERM": "xterm-256color",
            "TZ": "UTC",
        }
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
        )
        os.close(theirs)
        self._ours = ours
        self._began = time.monotonic()
        self._rest = ""
        self.lines: list[Line] = []

    def read(self, enough: Callable[[], bool]) -> None:
        """Record until ``enough``, or until the command ends."""
        end = time.monotonic() + _SECONDS
        while not enough() and time.monotonic() < end:
            if not select.select([self._ours], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(self._ours, 65_536)
            except OSError:
                # The command has ended and closed the terminal.
                break
            *whole, self._rest = (self._rest + data.decode("utf-8", "replace")).replace("\r", "").split("\n")
            at = time.monotonic() - self._began
            self.lines += [Line(at, text) for text in whole]

    def shows(self, text: str) -> bool:
        return any(text in line.text for line in self.lines)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(_SECONDS)
        os.close(self._ours)


def record(folder: Path) -> dict[str, tuple[str, list[Line]]]:
    """Play the commands; the typed words and the lines of each."""
    (folder / "tasks.py").write_text(_APPLICATION)
    program = str(Path(sys.executable).parent / "mainspring")
    port = str(free_port())
    found: dict[str, tuple[str, list[Line]]] = {}

    def call(*words: str) -> str:
        done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def play(name: str, *words: str) -> None:
        terminal = Terminal([program, *words], folder)
        terminal.read(lambda: False)
        terminal.process.wait(_SECONDS)
        found[name] = (f"mainspring {' '.join(words)}", terminal.lines)

    up = Terminal([program, "up", "tasks:app", "--queue", "default", "--port", port], folder)
    try:
        up.read(lambda: up.shows("mainspring: ready"))
        call("jobs", "submit", "send_welcome", "--arg", "user_id=42", "--wait")
        until = time.monotonic() + _LOGGED_SECONDS
        up.read(lambda: time.monotonic() > until)
        ready = next(number for number, line in enumerate(up.lines, 1) if "mainspring: ready" in line.text)
        shown = up.lines[:ready] + up.lines[ready:][-_LOG_LINES:]
        lines = [Line(line.at, line.text.replace(port, "7070")) for line in shown]
        found["up"] = ("mainspring up tasks:app", lines)
        play("top", "top", "--once")
        play("doctor", "doctor")
        run = call("jobs", "submit", "build_report", "--arg", "month=11", "--quiet")
        play("explain", "runs", "explain", run[-12:])
    finally:
        up.stop()
    return found


def draw(command: str, lines: Sequence[Line]) -> str:
    """Draw a command and its output as an SVG document."""
    while lines and not _plain(lines[-1].text).strip():
        lines = lines[:-1]
    rows = [(0.0, f'<tspan class="prompt">$ </tspan><tspan class="bold">{escape(command)}</tspan>')]
    at, before = 0.5, lines[0].at if lines else 0.0
    for line in lines:
        at += min(line.at - before, _LONGEST_PAUSE)
        before = line.at
        rows.append((at, _draw_line(line.text)))
    widest = max([len(command) + 2, *(len(_plain(line.text)) for line in lines)])
    width = round(2 * _MARGIN + min(widest, _COLUMNS) * _CHARACTER)
    height = _BAR + _MARGIN + len(rows) * _LINE
    body = "\n".join(
        f'<text class="line" style="animation-delay:{at:.2f}s" '
        f'x="{_MARGIN}" y="{_BAR + 14 + number * _LINE}">{row}</text>'
        for number, (at, row) in enumerate(rows)
    )
    dots = "".join(f'<circle class="dot" cx="{_MARGIN + 5 + 18 * number}" cy="18" r="5.5"/>' for number in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(command, quote=True)}">\n<style>{_STYLE}</style>\n'
        f'<rect class="window" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="9"/>{dots}\n{body}\n</svg>\n'
    )


def _plain(text: str) -> str:
    return Text.from_ansi(text).plain


def _draw_line(text: str) -> str:
    """Draw one line; its colors become classes."""
    line = Text.from_ansi(text)
    line.truncate(_COLUMNS, overflow="ellipsis")
    # Each character with the classes of the spans over it.
    classes: list[set[str]] = [set() for _ in line.plain]
    for start, end, style in line.spans:
        words = set(re.findall(r"\b(?:bold|dim)\b", str(style)))
        # Dark colors have the numbers 1 to 6, bright ones 9 to 14.
        words |= {
            _COLORS[int(found) % 8 - 1]
            for found in re.findall(r"color\((\d+)\)", str(style))
            if int(found) % 8 in range(1, 7)
        }
        for place in range(start, min(end, len(classes))):
            classes[place] |= words
    parts: list[tuple[str, str]] = []
    for letter, names in zip(line.plain, classes, strict=True):
        name = " ".join(sorted(names))
        if parts and parts[-1][0] == name:
            parts[-1] = (name, parts[-1][1] + letter)
        else:
            parts.append((name, letter))
    return "".join(f'<tspan class="{name}">{escape(piece)}</tspan>' if name else escape(piece) for name, piece in parts)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="mainspring-recording-") as name:
        for title, (command, lines) in record(Path(name)).items():
            (IMAGES / f"recording-{title}.svg").write_text(draw(command, lines), "utf-8")
            print(f"docs/images/recording-{title}.svg: {len(lines)} lines")


if __name__ == "__main__":
    main()
