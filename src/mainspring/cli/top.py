"""``mainspring top``: a live view of queues, workers, rates and tasks."""

import asyncio
import os
import sys
import termios
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer
from mainspring.cli.output import Output, build_table, format_span, make_console, shorten
from mainspring.core.model.base.errors import MainspringError, StoreUnavailable
from mainspring.core.model.base.headline import find_headline
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros, isoformat, parse_instant
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.features.events.commands import EventLine
from mainspring.features.queues.commands import format_lag, format_state
from mainspring.http.schemas.common import Page
from mainspring.http.schemas.queues import QueueOut
from mainspring.http.schemas.runs import RunOut
from mainspring.http.schemas.workers import Schedulers, WorkerOut, Workers

#: The window of the rates.
_WINDOW: Micros = 10 * SECOND
#: Task statistics cover this many of the newest ended runs, and are refreshed at this interval.
_SAMPLE = 500
_LOOK_AT_RUNS: Micros = 5 * SECOND
_WIDE = 120
_ENDS = {
    "run.succeeded": "ended",
    "run.failed": "failed",
    "run.cancelled": "ended",
    "run.skipped": "ended",
    "run.submitted": "submitted",
    "run.retried": "retried",
}


class Rates(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Rates per second, over the last ten seconds or since the command started."""

    submitted: float = 0.0
    ended: float = 0.0
    failed: float = 0.0
    retried: float = 0.0


class TaskRates(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Statistics of one task among the newest ended runs."""

    task: str
    runs: int
    failed: int
    took_ms_mean: float
    took_ms_max: float
    last_error: str = ""


class Frame(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A snapshot of the system, which ``--json`` prints."""

    time: str
    queued: int
    running: int
    rates: Rates
    queues: list[QueueOut]
    workers: list[WorkerOut]
    schedulers: int
    scheduler_lag_ms: float
    tasks: list[TaskRates]
    problem: str = ""


class Meter:
    """Counts events to compute rates."""

    def __init__(self, api: Client) -> None:
        self._api = api
        self._began = api.clock.monotonic()
        self._events: deque[tuple[Micros, str, int]] = deque()

    async def follow(self) -> None:
        clock = self._api.clock
        while True:
            with suppress(StoreUnavailable):
                async for kind, data in self._api.events("/v1/events", {"tenant": self._api.tenant}):
                    word = _ENDS.get(kind)
                    if word is not None:
                        self._events.append((clock.monotonic(), word, decode_answer(data, EventLine).count))
            await clock.sleep(SECOND)

    def rates(self) -> Rates:
        now = self._api.clock.monotonic()
        while self._events and self._events[0][0] < now - _WINDOW:
            self._events.popleft()
        over = max(min(now - self._began, _WINDOW) / SECOND, 0.1)
        sums = {"submitted": 0, "ended": 0, "failed": 0, "retried": 0}
        for _, word, count in self._events:
            sums[word] += count
        return Rates(
            submitted=round(sums["submitted"] / over, 1),
            # Failed runs have ended as well.
            ended=round((sums["ended"] + sums["failed"]) / over, 1),
            failed=round(sums["failed"] / over, 1),
            retried=round(sums["retried"] / over, 1),
        )


class View:
    """Takes snapshots, and caches the parts that are refreshed less often."""

    def __init__(self, api: Client, out: Output) -> None:
        self._api = api
        self._now = out.now
        self._meter = Meter(api)
        self._following: asyncio.Task[None] | None = None
        self._tasks: list[TaskRates] = []
        self._looked_at: Micros | None = None

    def begin(self) -> None:
        self._following = asyncio.create_task(self._meter.follow())

    async def end(self) -> None:
        if self._following is not None:
            await cancel_and_wait(self._following)

    async def look(self) -> Frame:
        api = self._api
        queues = decode_answer(await api.ask("GET", "/v1/queues", query={"tenant": api.tenant}), Page[QueueOut]).items
        workers = decode_answer(await api.ask("GET", "/v1/workers"), Workers).items
        schedulers = decode_answer(await api.ask("GET", "/v1/schedulers"), Schedulers)
        now = api.clock.monotonic()
        if self._looked_at is None or now - self._looked_at >= _LOOK_AT_RUNS:
            self._looked_at = now
            query = {"status": "succeeded,failed", "limit": _SAMPLE, "tenant": api.tenant}
            page = decode_answer(await api.ask("GET", "/v1/runs", query=query), Page[RunOut])
            self._tasks = compute_task_rates(page.items)
        return Frame(
            time=isoformat(self._now() // SECOND * SECOND),
            queued=sum(queue.queued for queue in queues),
            running=sum(queue.running for queue in queues),
            rates=self._meter.rates(),
            queues=sorted(queues, key=lambda queue: (-queue.queued - queue.running, queue.name)),
            workers=sorted(workers, key=lambda worker: (-worker.running, worker.name)),
            schedulers=len(schedulers.items),
            scheduler_lag_ms=schedulers.lag_ms,
            tasks=self._tasks,
        )


def compute_task_rates(runs: list[RunOut]) -> list[TaskRates]:
    """Compute statistics by task: failing tasks first, then slow ones."""
    by_task: dict[str, list[RunOut]] = {}
    for run in runs:
        by_task.setdefault(run.task, []).append(run)
    found = []
    for task, some in by_task.items():
        spent = [
            max(parse_instant(run.end_time) - parse_instant(run.start_time), 0)
            for run in some
            if run.start_time is not None and run.end_time is not None
        ]
        failed = [run for run in some if run.status == "failed"]
        found.append(
            TaskRates(
                task=task,
                runs=len(some),
                failed=len(failed),
                took_ms_mean=round(sum(spent) / len(spent) / MILLISECOND, 1) if spent else 0.0,
                took_ms_max=round(max(spent) / MILLISECOND, 1) if spent else 0.0,
                last_error=(find_headline(failed[0].error_message or "") or failed[0].reason) if failed else "",
            )
        )
    return sorted(found, key=lambda item: (-item.failed / item.runs, -item.took_ms_mean, item.task))


def draw(frame: Frame, width: int, height: int | None) -> RenderableType:
    """Render a snapshot to fit the screen. Without a height, all rows are shown."""
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(f"{frame.time[11:19]} UTC  ", "bold")
    head.append(f"{frame.queued:,} queued  {frame.running:,} running  ")
    rates = frame.rates
    head.append(f"{rates.submitted:,.1f} in/s  {rates.ended:,.1f} out/s  ")
    head.append(f"{rates.failed:,.1f} failed/s", "red" if rates.failed else "")
    if rates.retried:
        head.append(f"  {rates.retried:,.1f} retried/s", "yellow")
    second = Text(no_wrap=True, overflow="ellipsis")
    if frame.schedulers:
        second.append(f"{frame.schedulers} scheduler{'s' if frame.schedulers > 1 else ''}")
        if frame.scheduler_lag_ms >= 1_000:
            second.append(f", {format_span(round(frame.scheduler_lag_ms * MILLISECOND))} behind", "yellow")
    else:
        second.append("no scheduler", "red")
    second.append(
        f"  {len(frame.workers)} worker{'' if len(frame.workers) == 1 else 's'}", "" if frame.workers else "red"
    )
    if frame.problem:
        second.append(f"  {frame.problem}", "red")
    wide = width >= _WIDE
    # Lines that are not rows: the head, the column names, and one line after each table for the number of hidden rows.
    rows = None if height is None else max((height - (8 if wide else 11)) // (2 if wide else 3), 1)
    queues, workers, tasks = _queues(frame, rows), _workers(frame, rows, wide), _tasks(frame, rows, wide)
    if not wide:
        return Group(head, second, Text(), queues, Text(), workers, Text(), tasks)
    side = Table.grid(padding=(0, 4, 0, 0), expand=True)
    side.add_column(ratio=1)
    side.add_column(ratio=1)
    side.add_row(queues, workers)
    return Group(head, second, Text(), side, Text(), tasks)


def _queues(frame: Frame, rows: int | None) -> Table:
    numbers = ("QUEUED", "LAG", "RUNNING", "OUT/S")
    shown = build_table("QUEUE", *numbers, "STATE", right=numbers)
    for queue in frame.queues[:rows]:
        shown.add_row(
            queue.name,
            f"{queue.queued:,}",
            format_lag(queue),
            f"{queue.running:,}",
            f"{queue.rate_per_s:,.1f}",
            format_state(queue),
        )
    return _add_rest(shown, len(frame.queues), rows)


def _workers(frame: Frame, rows: int | None, wide: bool) -> Table:
    shown = build_table("WORKER", "NAME", "RUNNING", "QUEUES", "STATE", right=("RUNNING",))
    for worker in frame.workers[:rows]:
        shown.add_row(
            worker.worker_id,
            worker.name,
            f"{worker.running:,}",
            shorten(", ".join(worker.queues), 40 if wide else 24),
            Text("draining", "yellow") if worker.draining else "",
        )
    return _add_rest(shown, len(frame.workers), rows)


def _tasks(frame: Frame, rows: int | None, wide: bool) -> Table:
    numbers = ("RUNS", "FAILED", "MEAN", "LONGEST")
    shown = build_table("TASK", *numbers, "LAST ERROR", right=numbers)
    for task in frame.tasks[:rows]:
        shown.add_row(
            task.task,
            f"{task.runs:,}",
            Text(f"{task.failed / task.runs:.0%}", "red") if task.failed else "",
            format_span(round(task.took_ms_mean * MILLISECOND)),
            format_span(round(task.took_ms_max * MILLISECOND)),
            shorten(task.last_error, 80 if wide else 26),
        )
    return _add_rest(shown, len(frame.tasks), rows)


def _add_rest(shown: Table, count: int, rows: int | None) -> Table:
    if rows is not None and count > rows:
        shown.add_row(Text(f"and {count - rows} more", "dim"))
    return shown


def register(application: typer.Typer) -> None:
    @command(application, "top")
    async def top(
        api: Client,
        out: Output,
        once: Annotated[bool, typer.Option("--once", help="Show one sample, after measuring for a second.")] = False,
        interval: Annotated[
            float, typer.Option("--interval", min=0.2, max=3_600, help="Seconds between two updates.")
        ] = 1.0,
    ) -> None:
        """Watch queues, workers, rates, and the tasks that fail or take long. q or Ctrl-C ends it.

        Rates cover the last ten seconds; OUT/S of a queue covers the last five minutes. Task statistics cover the
        newest 500 ended runs: failing tasks first, then slow ones.

        Examples:

        mainspring top --profile prod

        mainspring top --once --json
        """
        view = View(api, out)
        view.begin()
        try:
            if once:
                await api.clock.sleep(SECOND)
                frame = await view.look()
                names = [queue.name for queue in frame.queues]
                out.render(frame, names, lambda: out.print(draw(frame, out.console.width, None)))
                return
            while out.as_json or not sys.stdout.isatty():
                await api.clock.sleep(round(interval * SECOND))
                frame = await view.look()
                out.line(frame, f"{frame.time}  {frame.queued} queued  {frame.running} running")
            await _live(view, interval)
        finally:
            await view.end()


async def _live(view: View, interval: float) -> None:
    screen = make_console()
    pressed = asyncio.Event()
    frame: Frame | None = None
    with (
        _watch_keys(pressed),
        suppress(asyncio.CancelledError),
        Live(console=screen, screen=True, auto_refresh=False) as live,
    ):
        while not pressed.is_set():
            try:
                frame = await view.look()
            except MainspringError as error:
                if frame is None or not isinstance(error, StoreUnavailable):
                    raise
                # Show the last snapshot and mark it as outdated.
                frame = msgspec.structs.replace(frame, problem=f"away: {error}")
            live.update(draw(frame, screen.width, screen.height), refresh=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await pressed.wait()


@contextmanager
def _watch_keys(pressed: asyncio.Event) -> Iterator[None]:
    """Set the event when q is pressed. Keys are read one by one and not echoed."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def key() -> None:
        if b"q" in os.read(terminal, 64).lower():
            pressed.set()

    loop = asyncio.get_running_loop()
    tty.setcbreak(terminal)
    loop.add_reader(terminal, key)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
