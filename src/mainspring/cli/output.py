"""Output of commands: tables that fit the terminal, or JSON for programs."""

import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND, Instant, Micros, isoformat, parse_instant
from mainspring.core.ports.clock import Clock

AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else.")]
#: Line width if the output is not a terminal.
_WIDE = 160
#: From this width on, tables have room for columns that narrow ones omit.
_ROOMY = 120
#: The length of a short id: the random end of an id. Ids that are created at the same time begin alike.
_SHORT_ID = 12
_WATCH_INTERVAL: Micros = 2 * SECOND
_COLOURS = {
    "succeeded": "green",
    "running": "cyan",
    "failed": "red",
    "cancelled": "yellow",
    "cancelling": "yellow",
    "skipped": "yellow",
    "paused": "yellow",
}


def make_console() -> Console:
    """Return a console for stdout. Rich uses colors only on a terminal, and none if ``NO_COLOR`` is set."""
    return Console(highlight=False, markup=False, emoji=False)


def build_table(*headers: str, right: tuple[str, ...] = ()) -> Table:
    """Return a table without lines. The columns named in ``right`` are aligned to the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        made.add_column(header, justify="right" if header in right else "left", overflow="fold")
    return made


def echo_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def format_distance(micros: Micros) -> str:
    """Format how far ahead a time is, in one unit: ``in 36 hours``."""
    for size, unit in ((365 * DAY, "year"), (DAY, "day"), (HOUR, "hour"), (MINUTE, "minute"), (SECOND, "second")):
        # Require two of a unit: "in 36 hours" is more precise than "in 1 day".
        if micros >= 2 * size or (size == SECOND and micros >= size):
            count = micros // size
            return f"in {count:,} {unit}{'s' if count > 1 else ''}"
    return "now"


def format_span(micros: Micros) -> str:
    """Format a duration, in two or three characters where possible."""
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m")):
        if micros >= 2 * size:
            return f"{micros // size:,}{unit}"
    if micros >= 10 * SECOND:
        return f"{micros // SECOND}s"
    if micros >= SECOND:
        return f"{micros / SECOND:.1f}s"
    return f"{micros // 1_000}ms"


def format_status(word: str) -> Text:
    return Text(word, _COLOURS.get(word, ""))


class Output:
    """How one command prints its results: as tables, as JSON or as ids."""

    def __init__(self, *, as_json: bool, quiet: bool, utc: bool, now: Callable[[], Instant]) -> None:
        if as_json and quiet:
            raise Invalid("--quiet", "contradicts --json")
        self.as_json = as_json
        self.quiet = quiet
        self.shows_utc = utc
        self.now = now
        #: Whether the command repeats its output until Ctrl-C.
        self.watches = False
        self.console = Console(
            highlight=False,
            markup=False,
            emoji=False,
            width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE,
        )
        #: Whether a table has room for more columns.
        self.roomy = self.console.width >= _ROOMY

    @property
    def for_people(self) -> bool:
        return not (self.as_json or self.quiet)

    def render(self, answer: object, ids: Iterable[str], show: Callable[[], object]) -> None:
        """Print the answer as JSON, or only its ids, or by ``show`` as text for people."""
        if self.as_json:
            echo_json(answer)
        elif self.quiet:
            for identifier in ids:
                typer.echo(identifier)
        else:
            show()

    def line(self, value: object, words: str) -> None:
        """Print one line of a stream of values."""
        typer.echo(msgspec.json.encode(value).decode() if self.as_json else words)

    def print(self, *parts: object) -> None:
        self.console.print(*parts)

    def rows(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[str | Text]],
        right: tuple[str, ...] = (),
        *,
        empty: str = "",
    ) -> None:
        """Print a table with one line per row, or ``empty`` if there are none.

        The last column is truncated to the width that the others leave.
        """
        cells = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
        if empty and not cells:
            self.report(empty)
            return
        taken = sum(
            max(len(header), *(row[at].cell_len for row in cells), 0) + 2 for at, header in enumerate(headers[:-1])
        )
        left = max(self.console.width - taken, 12)
        shown = build_table(*headers, right=right)
        # Ids and names stay whole, so that they can be copied into another command.
        shown.columns[0].no_wrap = True
        shown.columns[0].min_width = max(len(headers[0]), *(row[0].cell_len for row in cells), 0)
        for row in cells:
            row[-1].truncate(left, overflow="ellipsis")
            shown.add_row(*row)
        self.print(shown)

    def report(self, words: str) -> None:
        """Report to people what was done. Goes to stderr, because stdout is for the results."""
        if not self.for_people:
            return
        if self.watches:
            # With the rest of the sample, which is printed at once.
            self.print(words)
        else:
            typer.echo(words, err=True)

    def note(self, words: str) -> None:
        """Print a hint to stderr for people and programs alike."""
        typer.echo(f"mainspring: {words}", err=True)

    async def watch(self, show: Callable[[], Awaitable[None]], clock: Clock) -> None:
        """Print the output again and again. On a terminal, each sample replaces the one before."""
        self.watches = True
        redraws = self.for_people and self.console.is_terminal
        while True:
            if redraws:
                self.console.begin_capture()
                try:
                    await show()
                finally:
                    sample = self.console.end_capture()
                # The cursor moves to the top, and the rest of each line and of the screen is cleared.
                sys.stdout.write("\x1b[H" + sample.replace("\n", "\x1b[K\n") + "\x1b[J")
                sys.stdout.flush()
            else:
                await show()
            await clock.sleep(_WATCH_INTERVAL)

    def warn(self, words: str) -> None:
        """A warning: the command was done, and there is something to look at."""
        self.note(f"warning: {words}")

    def id(self, identifier: str) -> str:
        """Shorten an id to its end, which every command accepts. Output that goes to a file keeps whole ids."""
        return shorten_id(identifier, self.console)

    def time(self, text: str | None, missing: str = "") -> str:
        """Format a time relative to now, or in UTC."""
        if text is None:
            return missing
        if self.shows_utc:
            return f"{text[:19]}Z"
        return self.moment(parse_instant(text))

    def moment(self, instant: Instant) -> str:
        if self.shows_utc:
            return f"{isoformat(instant)[:19]}Z"
        away = instant - self.now()
        return f"in {format_span(away)}" if away > 0 else f"{format_span(-away)} ago"


def format_elapsed(start: str | None, end: str | None) -> str:
    """Format the duration of something. Empty if it has not started or not ended."""
    if start is None or end is None:
        return ""
    return format_span(max(parse_instant(end) - parse_instant(start), 0))


def shorten_id(identifier: str, console: Console) -> str:
    return identifier if console.width >= _WIDE else identifier[-_SHORT_ID:]


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation before an action that cannot be undone. Refused if stdin is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Invalid("--yes", f"is needed to {question} where nobody can be asked")
    if not typer.confirm(f"{question[:1].upper()}{question[1:]}?", err=True):
        raise typer.Exit(2)


def print_details(out: Output, rows: Iterable[tuple[str, object]]) -> None:
    """Print an object field by field, without empty fields."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows:
        if value not in (None, "", (), []):
            grid.add_row(Text(name, "bold"), value if isinstance(value, Text) else Text(str(value)))
    out.print(grid)
