"""``mainspring dead-letters``: list, replay and discard runs that failed for good."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, TypeAlias

import msgspec
import typer

from mainspring.cli import exits
from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer
from mainspring.cli.fields import DryRun, Everything, Limit, Payload, Queue, Task, Yes, read_payload
from mainspring.cli.output import Output, confirm
from mainspring.cli.tables.runs import show_runs
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.headline import find_headline
from mainspring.core.model.base.instant import SECOND, parse_duration, parse_instant
from mainspring.features.dead_letters.commands import replays
from mainspring.http.schemas.dead_letters import Groups
from mainspring.http.schemas.runs import RunOut

group = typer.Typer(
    name="dead-letters", help="List, replay and discard runs that failed permanently.", no_args_is_help=True
)

#: Runs per request. Small enough for a moving progress bar, and for Ctrl-C to stop the rest.
_REQUEST_SIZE = 500
_MAX_RUNS = 1_000_000
_PACE = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(.+)")

Runs: TypeAlias = Annotated[
    list[str] | None, typer.Argument(help="Run ids, or the last characters of ids.", metavar="[RUN…]")
]
Group: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="Only dead letters of this group, as `list` shows it.",
        metavar="FINGERPRINT",
        show_default=False,
    ),
]
FailedAfter: TypeAlias = Annotated[
    str | None, typer.Option("--failed-after", help="Only runs that failed after this time.", show_default=False)
]
FailedBefore: TypeAlias = Annotated[
    str | None, typer.Option("--failed-before", help="Only runs that failed before this time.", show_default=False)
]


def register(application: typer.Typer) -> None:
    application.add_typer(group)
    application.add_typer(replays.group)


class DeadLetterResult(msgspec.Struct, rename="camel"):
    """The runs that an action changed, or would change."""

    action: str
    count: int
    more: bool
    dry_run: bool
    run_ids: list[str] = []


@command(group, "list")
async def list_dead(
    api: Client,
    out: Output,
    runs: Annotated[bool, typer.Option("--runs", help="List single runs, newest first, instead of groups.")] = False,
    fingerprint: Group = None,
    task: Task = None,
    queue: Queue = None,
    limit: Limit = 50,
) -> None:
    """List dead letters by error, the largest group first; or one by one.

    Examples:

    mainspring dead-letters list

    mainspring dead-letters list --runs --group 9f86d081884c7d65
    """
    query = {"task": task, "queue": queue, "tenant": api.tenant}
    if runs or fingerprint is not None:
        found = await api.pages("/v1/dead-letters/runs", {**query, "fingerprint": fingerprint}, limit)
        dead = [decode_answer(item, RunOut) for item in found.items]
        out.render(
            found, [run.run_id for run in dead], lambda: show_runs(out, dead, more=found.next_cursor is not None)
        )
        return
    answer = await api.ask("GET", "/v1/dead-letters", query={**query, "limit": min(limit, 1_000)})
    groups = decode_answer(answer, Groups).items

    def show() -> None:
        out.rows(
            ("GROUP", "TASK", "COUNT", "1H", "24H", "LAST", "ERROR"),
            [
                (
                    item.fingerprint,
                    item.task,
                    f"{item.count:,}",
                    f"{sum(item.trend[-1:]):,}",
                    f"{sum(item.trend):,}",
                    out.time(item.last_seen),
                    find_headline(item.error_message or "") or item.reason,
                )
                for item in groups
            ],
            right=("COUNT", "1H", "24H"),
            empty="no dead letters",
        )

    out.render(answer, [item.fingerprint for item in groups], show)


@command(group, "replay")
async def replay(
    api: Client,
    out: Output,
    runs: Runs = None,
    fingerprint: Group = None,
    task: Task = None,
    queue: Queue = None,
    failed_after: FailedAfter = None,
    failed_before: FailedBefore = None,
    everything: Everything = False,
    payload: Payload = None,
    patch: Annotated[
        str | None,
        typer.Option("--patch", help="A JSON merge patch for each payload, or @file.", show_default=False),
    ] = None,
    pace: Annotated[
        str | None,
        typer.Option("--pace", help="Replay at this rate, such as 50/s or 600/min. Default: all at once."),
    ] = None,
    canary: Annotated[
        int | None,
        typer.Option(
            "--canary",
            min=1,
            max=1_000,
            help="Replay this many first, and the rest after they succeed. Continues if this command ends.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Run dead letters again, as new runs linked to the old ones. Ctrl-C leaves the rest as they are.

    With --canary the replay is stored, and schedulers continue it even if this command ends.

    Examples:

    mainspring dead-letters replay --group 9f86d081884c7d65 --dry-run

    mainspring dead-letters replay --task send_welcome --pace 50/s

    mainspring dead-letters replay --group 9f86d081884c7d65 --canary 5 --pace 100/s --patch '{"retries": null}'

    mainspring dead-letters replay 3f2a90c14b7e --payload '{"user_id": 42}'
    """
    per_second = None if pace is None else _parse_pace(pace)
    if canary is not None and not dry_run:
        if runs or payload is not None:
            raise Invalid(
                "--canary", "requires a filter", "use --group, --task, --queue or --all, and --patch for payloads"
            )
        request = {
            "fingerprint": fingerprint,
            "task": task,
            "queue": queue,
            "failedAfter": failed_after,
            "failedBefore": failed_before,
            "everything": everything,
            "tenant": api.tenant,
            "canaries": canary,
            "perSecond": per_second,
            "payloadPatch": None if patch is None else read_payload(patch, "--patch"),
        }
        await replays.start_replay(api, out, request)
        return
    chosen = await _select_runs(api, runs, fingerprint, task, queue, failed_after, failed_before, everything)
    if payload is not None and len(chosen) != 1:
        raise Invalid("--payload", f"applies to one run, and {len(chosen)} are selected")
    extra: dict[str, object] = {} if per_second is None else {"perSecond": per_second}
    if payload is not None:
        extra["payload"] = read_payload(payload)
    if patch is not None:
        extra["payloadPatch"] = read_payload(patch, "--patch")
    if dry_run:
        _print_result(
            out, DeadLetterResult(action="replay", count=len(chosen), more=False, dry_run=True, run_ids=chosen[:100])
        )
        return
    await _send(api, out, "replay", chosen, extra, per_second)


@command(group, "discard")
async def discard(
    api: Client,
    out: Output,
    runs: Runs = None,
    fingerprint: Group = None,
    task: Task = None,
    queue: Queue = None,
    failed_after: FailedAfter = None,
    failed_before: FailedBefore = None,
    everything: Everything = False,
    why: Annotated[str, typer.Option("--why", help="The reason, kept in the audit log.", show_default=False)] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Discard dead letters: they leave the list and stay in history.

    Examples:

    mainspring dead-letters discard 3f2a90c14b7e

    mainspring dead-letters discard --group 9f86d081884c7d65 --why "fixed by hand" --yes
    """
    chosen = await _select_runs(api, runs, fingerprint, task, queue, failed_after, failed_before, everything)
    if dry_run:
        _print_result(
            out, DeadLetterResult(action="discard", count=len(chosen), more=False, dry_run=True, run_ids=chosen[:100])
        )
        return
    if not runs and chosen:
        confirm(f"discard {len(chosen):,} dead letters", yes)
    await _send(api, out, "discard", chosen, {"why": why} if why else {}, None)


async def _select_runs(
    api: Client,
    runs: list[str] | None,
    fingerprint: str | None,
    task: str | None,
    queue: str | None,
    failed_after: str | None,
    failed_before: str | None,
    everything: bool,
) -> list[str]:
    """Return the ids of the selected dead letters."""
    filters = (fingerprint, task, queue, failed_after, failed_before, everything)
    if runs:
        if any(filters):
            raise Invalid("run", "cannot be combined with a filter")
        return [await api.run(run) for run in dict.fromkeys(runs)]
    if not any(filters):
        raise Invalid("run", "no selection", "pass ids, a filter such as --group, or --all")
    since = None if failed_after is None else parse_instant(failed_after, "--failed-after")
    until = None if failed_before is None else parse_instant(failed_before, "--failed-before")
    query = {"fingerprint": fingerprint, "task": task, "queue": queue, "tenant": api.tenant}
    found = await api.pages("/v1/dead-letters/runs", query, _MAX_RUNS)
    return [
        run.run_id
        for run in (decode_answer(item, RunOut) for item in found.items)
        if run.end_time is not None
        and (since is None or parse_instant(run.end_time) > since)
        and (until is None or parse_instant(run.end_time) < until)
    ]


async def _send(
    api: Client, out: Output, action: str, chosen: Sequence[str], extra: dict[str, object], per_second: float | None
) -> None:
    count = 0
    made: list[str] = []
    # With a pace, a request covers about a second, and each waits until it is due.
    size = _REQUEST_SIZE if per_second is None else min(max(round(per_second), 1), _REQUEST_SIZE)
    began = api.clock.monotonic()
    with _show_progress(out, action, len(chosen)) as advance:
        for start in range(0, len(chosen), size):
            if per_second is not None:
                due = began + round(start / per_second * SECOND)
                await api.clock.sleep(max(due - api.clock.monotonic(), 0))
            part = chosen[start : start + size]
            body = {"runIds": part, **extra}
            result = decode_answer(
                await api.ask("POST", f"/v1/dead-letters/{action}", body=body, repeatable=True), DeadLetterResult
            )
            count += result.count
            made += result.run_ids
            advance(len(part))
            if result.more:
                # A quota is reached: the next request would create nothing.
                break
    _print_result(
        out, DeadLetterResult(action=action, count=count, more=count < len(chosen), dry_run=False, run_ids=made[:100])
    )
    if count < len(chosen):
        out.warn(f"{len(chosen) - count:,} of {len(chosen):,} were skipped: already handled, or over a quota")
        raise typer.Exit(exits.PARTLY if count else exits.FAILED)


def _print_result(out: Output, result: DeadLetterResult) -> None:
    verb = "replayed" if result.action == "replay" else "discarded"
    words = f"{result.count:,} would be {verb}" if result.dry_run else f"{result.count:,} {verb}"
    out.render(result, result.run_ids, lambda: out.print(words))


def _parse_pace(pace: str) -> float:
    found = _PACE.fullmatch(pace.strip())
    if found is None:
        raise Invalid("--pace", f"{pace!r} is not a rate", "for example 50/s or 600/min")
    unit = found[2].strip()
    over = parse_duration(unit if unit[0].isdigit() else f"1{unit}", "--pace")
    rate = float(found[1]) * SECOND / over if over else 0.0
    if not 0 < rate <= 100_000:
        raise Invalid("--pace", f"{pace!r} is out of range", "more than 0 and at most 100000/s")
    return rate


@contextmanager
def _show_progress(out: Output, action: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr if it is a terminal."""
    if not (out.for_people and sys.stderr.isatty() and total > 1):
        yield lambda count: None
        return
    # Imported here because it takes long to load and few commands draw a bar.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(action, total=total)
        yield lambda count: progress.advance(bar, count)
