"""``mainspring runs``: the executions of jobs."""

from collections.abc import Sequence
from contextlib import aclosing
from itertools import zip_longest
from typing import Annotated, TypeAlias

import msgspec
import typer

from mainspring.cli.bulk import act_on_many
from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, Raw, decode_answer
from mainspring.cli.client.waiting import wait_for
from mainspring.cli.each import act_on_each
from mainspring.cli.fields import (
    After,
    Before,
    Contains,
    DryRun,
    Everything,
    Limit,
    Payload,
    Queue,
    Status,
    Tag,
    Task,
    Wait,
    Yes,
    read_payload,
)
from mainspring.cli.output import Output, format_elapsed, format_status, print_details
from mainspring.cli.tables.runs import find_start, format_result, show_runs
from mainspring.core.model.base.errors import Invalid, NotFound
from mainspring.core.model.base.headline import find_headline
from mainspring.core.model.runs.run import Outcome
from mainspring.http.schemas.runs import AttemptOut, Explanation, LogLineOut, RunMade, RunOut

group = typer.Typer(name="runs", help="List, inspect, cancel and retry runs.", no_args_is_help=True)

Run: TypeAlias = Annotated[
    str, typer.Argument(help="The run's id, or the last characters of the id.", metavar="RUN", show_default=False)
]
Follow: TypeAlias = Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the run ends.")]


def register(application: typer.Typer) -> None:
    application.add_typer(group)


class LogPage(msgspec.Struct, rename="camel"):
    items: list[LogLineOut]
    next_after: int


@command(group, "list")
async def list_runs(
    api: Client,
    out: Output,
    status_: Status = None,
    job: Annotated[
        str | None, typer.Option("--job", help="Only runs of this recurring job: id or name.", show_default=False)
    ] = None,
    task: Task = None,
    queue: Queue = None,
    tag: Tag = None,
    text: Contains = None,
    after: After = None,
    before: Before = None,
    limit: Limit = 50,
) -> None:
    """List runs, newest first. Filters must all hold.

    Examples:

    mainspring runs list --status running

    mainspring runs list --job weekly-report --status failed --limit 5
    """
    query = {
        "status": status_,
        "jobId": None if job is None else await api.job(job),
        "task": task,
        "queue": queue,
        "tag": tag,
        "text": text,
        "createdAfter": after,
        "createdBefore": before,
        "tenant": api.tenant,
    }
    found = await api.pages("/v1/runs", query, limit)
    runs = [decode_answer(item, RunOut) for item in found.items]
    out.render(found, [run.run_id for run in runs], lambda: show_runs(out, runs, more=found.next_cursor is not None))


@command(group, "show")
async def show_run(api: Client, out: Output, run: Run, wait: Wait = False) -> None:
    """Show a run: its status, its attempts, its payload and its result.

    Examples:

    mainspring runs show 3f2a90c14b7e

    mainspring runs show 3f2a90c14b7e --wait --json
    """
    identifier = await api.run(run)
    if wait:
        await wait_for(api, out, identifier)
        return
    answer = await api.ask("GET", f"/v1/runs/{identifier}")
    out.render(answer, [identifier], lambda: _show_details(out, decode_answer(answer, RunOut)))


@command(group, "cancel")
async def cancel(
    api: Client,
    out: Output,
    runs: Annotated[
        list[str] | None, typer.Argument(help="Run ids, or the last characters of ids.", metavar="[RUN…]")
    ] = None,
    status_: Status = None,
    job: Annotated[
        str | None, typer.Option("--job", help="Only runs of this recurring job: id or name.", show_default=False)
    ] = None,
    task: Task = None,
    queue: Queue = None,
    tag: Tag = None,
    text: Contains = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Cancel runs, by id or by a filter. An active run is asked to stop; a waiting run never starts.

    Examples:

    mainspring runs cancel 3f2a90c14b7e

    mainspring runs cancel --task send_welcome --status queued --yes
    """
    filters: dict[str, object] = {
        "status": status_,
        "task": task,
        "queue": queue,
        "tag": tag,
        "text": text,
        "everything": everything,
    }
    if not runs:
        if job is not None:
            filters["jobId"] = await api.job(job)
        await act_on_many(api, out, "cancel", "runs", filters, dry_run=dry_run, yes=yes)
        return
    if any(filters.values()) or job is not None or dry_run:
        raise Invalid("run", "cannot be combined with a filter")

    async def one(text: str) -> tuple[Raw, str, str]:
        identifier = await api.run(text)
        answer = await api.ask("POST", f"/v1/runs/{identifier}/cancel", repeatable=True)
        return answer, identifier, f"run {text} is {decode_answer(answer, dict[str, str])['status']}"

    await act_on_each(out, runs, one)


@command(group, "retry")
async def retry(api: Client, out: Output, run: Run, payload: Payload = None, wait: Wait = False) -> None:
    """Retry a completed run as a new run linked to it, optionally with another payload.

    Example: mainspring runs retry 3f2a90c14b7e --wait
    """
    body = {} if payload is None else {"payload": read_payload(payload)}
    answer = await api.ask("POST", f"/v1/runs/{await api.run(run)}/retry", body=body)
    new = decode_answer(answer, RunMade)
    if wait:
        await wait_for(api, out, new.run_id)
    else:
        out.render(answer, [new.run_id], lambda: out.print(f"run {new.run_id} is {new.status}"))


@command(group, "logs")
async def logs(
    api: Client,
    out: Output,
    run: Annotated[str, typer.Argument(help="A run, or a job for its newest started run.", metavar="RUN")],
    follow: Follow = False,
) -> None:
    """Show the log output of a run. --follow streams it until the run ends, and reconnects if the connection breaks.

    Examples:

    mainspring runs logs 3f2a90c14b7e

    mainspring runs logs weekly-report --follow
    """
    identifier = await _find_run(api, run)
    if follow:
        async with aclosing(api.events(f"/v1/runs/{identifier}/logs/follow")) as events:
            async for kind, data in events:
                if kind == "line":
                    line = decode_answer(data, LogLineOut)
                    out.line(data, _format_line(out, line))
                elif kind == "end":
                    out.report(f"run {identifier} {decode_answer(data, dict[str, str])['status']}")
                    return
        return
    after = 0
    items: list[Raw] = []
    while True:
        answer = await api.ask("GET", f"/v1/runs/{identifier}/logs", query={"after": after, "limit": 1_000})
        page = decode_answer(answer, LogPage)
        items += decode_answer(answer, _RawLogPage).items
        after = page.next_after
        if out.for_people:
            for line in page.items:
                out.line(line, _format_line(out, line))
        if len(page.items) < 1_000:
            break
    if not out.for_people:
        out.render({"runId": identifier, "items": items}, [identifier], lambda: None)


@command(group, "explain")
async def explain(api: Client, out: Output, run: Run) -> None:
    """Explain the status of a run: what it waits for, and what would help.

    Example: mainspring runs explain 3f2a90c14b7e
    """
    identifier = await api.run(run)
    answer = await api.ask("GET", f"/v1/runs/{identifier}/explain")

    def show() -> None:
        found = decode_answer(answer, Explanation)
        out.print(f"run {out.id(identifier)} is {found.status}")
        for reason in found.reasons:
            out.print(f"  {reason}")
        if found.position is not None:
            out.print(f"  {found.position} runs ahead in the queue")
        if found.estimated_start is not None:
            out.print(f"  estimated start {out.time(found.estimated_start)}")
        for hint in found.hints:
            out.print(f"  try: {hint}")

    out.render(answer, [identifier], show)


class _RawLogPage(msgspec.Struct):
    items: list[Raw]


class _NewestRun(msgspec.Struct, rename="camel"):
    run_id: str = ""


async def _find_run(api: Client, text: str) -> str:
    """Return the id of a run, or of the newest started run of a job.

    A one-off job has the id of its run, so the run is tried first.
    """
    try:
        identifier = await api.run(text)
        await api.ask("GET", f"/v1/runs/{identifier}/logs", query={"limit": 1})
        return identifier
    except NotFound:
        job = await api.job(text)
    newest = decode_answer(await api.ask("GET", f"/v1/jobs/{job}/logs", query={"limit": 1}), _NewestRun).run_id
    if not newest:
        raise NotFound(f"no run of {text!r} has started")
    return newest


def _format_line(out: Output, line: LogLineOut) -> str:
    return f"{line.time}  {line.text}" if out.shows_utc else line.text


def _show_details(out: Output, run: RunOut) -> None:
    # The start and due time of a fan-out in progress are those of its latest poll, so show when it was submitted.
    start = find_start(run)
    is_fan_out = start != run.start_time
    print_details(
        out,
        [
            ("run", run.run_id),
            ("job", run.job_id if run.job_id != run.run_id else ""),
            ("name", run.name),
            ("task", run.task),
            ("status", format_status(run.status)),
            ("reason", run.reason),
            ("progress", f"{run.progress} {run.progress_note or ''}".strip() if run.progress else ""),
            ("queue", f"{run.queue}, priority {run.priority}"),
            ("tick", run.tick),
            ("due", "" if is_fan_out else f"{run.scheduled_for}  {out.time(run.scheduled_for)}"),
            ("submitted" if is_fan_out else "started", start and f"{start}  {out.time(start)}"),
            ("ended", run.end_time and f"{run.end_time}  {out.time(run.end_time)}"),
            ("took", format_elapsed(start, run.end_time)),
            ("try", f"{run.attempt_number} of {run.max_retries + 1}"),
            ("worker", run.executor_id),
            ("replay of", run.replay_of),
            ("trace", run.trace_id),
            ("tenant", run.tenant),
            ("owner", run.owner),
            ("tags", ", ".join(run.tags)),
            ("payload", "" if run.payload is msgspec.UNSET else bytes(run.payload).decode()),
            ("result", format_result(run)),
            ("error", (run.error_message or "").rstrip()),
        ],
    )
    if run.attempts:
        out.print()
        out.rows(
            ("TRY", "OUTCOME", "STARTED", "TOOK", "WHY"),
            [
                (
                    str(attempt.attempt_number),
                    attempt.outcome,
                    out.time(attempt.start_time),
                    format_elapsed(attempt.start_time, attempt.end_time),
                    find_headline(attempt.error_message or "") or attempt.reason,
                )
                for attempt in _merge_polls(run.attempts)
            ],
            right=("TRY", "TOOK"),
        )


def _merge_polls(attempts: Sequence[AttemptOut]) -> list[AttemptOut]:
    """Merge consecutive releases for the same reason into the last one: a fan-out may have hundreds of polls."""
    return [
        attempt
        for attempt, following in zip_longest(attempts, attempts[1:])
        if following is None
        or (attempt.outcome, attempt.reason) != (following.outcome, following.reason)
        or attempt.outcome != Outcome.RELEASED
    ]
