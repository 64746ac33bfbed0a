"""``mainspring drill``: test whether the cluster survives the death of a scheduler."""

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, Raw, decode_answer
from mainspring.cli.output import Output, print_details
from mainspring.core.model.base.errors import Invalid, NotFound
from mainspring.core.model.base.instant import SECOND, Micros, parse_duration
from mainspring.features.drill.model import check_allowed
from mainspring.http.schemas.workers import SchedulerOut, Schedulers

#: Delay that lets the watch begin before the kill.
_KILL_DELAY: Micros = SECOND


class _Report(msgspec.Struct, rename="camel"):
    scheduler: str
    schedulers: int
    shards: int
    seconds_without_owner: float | None
    taken_over_by: list[str]
    jobs: int
    ticks: int
    late: int
    latest_seconds: float
    missed: int
    doubled: int
    watched_seconds: float
    passed: bool


class _DrillSettings(msgspec.Struct):
    production: bool


def register(application: typer.Typer) -> None:
    command(application, "drill")(drill)


async def drill(
    api: Client,
    out: Output,
    scheduler: Annotated[
        str | None,
        typer.Argument(
            help="A scheduler, by name or number. Default: the one with the most shards.", show_default=False
        ),
    ] = None,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill the scheduler's process on this machine instead of revoking its lease.")
    ] = False,
    watch: Annotated[str, typer.Option("--watch", help="How long to watch: 3 to 25 seconds.")] = "10s",
    in_production: Annotated[
        bool, typer.Option("--in-production", help="Allow the drill where the setting `production` is on.")
    ] = False,
) -> None:
    """Revoke a scheduler's lease in the running cluster, and report the effect.

    The other schedulers take over its shards; it rejoins by itself. With --kill its process is killed, as by kill -9;
    its supervisor must start it again. Exits with 1 if no other scheduler took over, if shards were left without an
    owner, or if a tick was missed or doubled.

    Examples:

    mainspring drill

    mainspring drill --kill --watch 20s
    """
    given: dict[str, object] = {
        "scheduler": scheduler,
        "watch": parse_duration(watch, "--watch") / SECOND,
        "revoke": not kill,
        "inProduction": in_production,
    }
    body = {name: value for name, value in given.items() if value is not None}
    if kill:
        answer = await _kill(api, scheduler, body)
    else:
        answer = await api.ask("POST", "/v1/drills", body=body)
    report = decode_answer(answer, _Report)
    out.render(answer, [report.scheduler], lambda: _show_report(out, report))
    if not report.passed:
        raise typer.Exit(1)


async def _kill(api: Client, scheduler: str | None, body: dict[str, object]) -> Raw:
    """Kill the scheduler while the API watches. A kill cannot be undone, so all checks come first."""
    production = decode_answer(await api.ask("GET", "/v1/drills"), _DrillSettings).production
    check_allowed(in_production=production, confirmed=bool(body["inProduction"]))
    alive = decode_answer(await api.ask("GET", "/v1/schedulers"), Schedulers).items
    candidates = [
        one for one in alive if (_is_local(one) if scheduler is None else scheduler in (one.name, one.scheduler_id))
    ]
    if not candidates:
        raise NotFound(f"there is no scheduler {'on this machine' if scheduler is None else repr(scheduler)}")
    target = max(candidates, key=lambda one: one.shards)
    process = _find_process(target)
    watching = asyncio.create_task(api.ask("POST", "/v1/drills", body=body | {"scheduler": target.scheduler_id}))
    await api.clock.sleep(_KILL_DELAY)
    if not watching.done():
        os.kill(process, signal.SIGKILL)
    return await watching


def _is_local(scheduler: SchedulerOut) -> bool:
    return scheduler.name.rpartition(":")[0] == socket.gethostname()


def _find_process(scheduler: SchedulerOut) -> int:
    """Return the process id of a scheduler that runs on this machine."""
    name = scheduler.name
    number = name.rpartition(":")[2]
    if not _is_local(scheduler) or not number.isdigit():
        raise Invalid(
            "scheduler",
            f"{name} does not name a process on this machine",
            "choose a scheduler that was started here without --name",
        )
    try:
        words = Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        raise Invalid("scheduler", f"there is no process {number} on this machine") from None
    if b"mainspring" not in words:
        raise Invalid("scheduler", f"process {number} is not Mainspring's")
    return int(number)


def _show_report(out: Output, report: _Report) -> None:
    owner = report.seconds_without_owner
    good = Text("passed", "green") if report.passed else Text("failed", "red")
    alone = " and no other" if report.schedulers == 1 else f" of {report.schedulers} schedulers"
    print_details(
        out,
        [
            ("drill", good),
            ("scheduler", f"{report.scheduler},{alone}, with {report.shards} shards"),
            ("taken over by", ", ".join(report.taken_over_by) or "no other scheduler: start a second one"),
            ("without an owner", "never taken over" if owner is None else f"{owner:.2f} s"),
            ("ticks", f"{report.ticks:,} of {report.jobs:,} recurring jobs in {report.watched_seconds:g} s"),
            ("late", f"{report.late:,}, the latest by {report.latest_seconds:.2f} s"),
            ("missed", f"{report.missed:,}"),
            ("doubled", f"{report.doubled:,}"),
        ],
    )
