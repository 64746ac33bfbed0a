"""``mainspring jobs``: submit, list, change, pause, run and cancel jobs."""

import uuid
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.text import Text

from mainspring.cli.bulk import on_many
from mainspring.cli.client.target import Client, Raw, command, read
from mainspring.cli.client.waiting import wait_for
from mainspring.cli.each import each
from mainspring.cli.fields import (
    After,
    Before,
    Contains,
    DryRun,
    Everything,
    Limit,
    Payload,
    Queue,
    Set,
    Status,
    Tag,
    Task,
    Wait,
    Yes,
    arguments_of,
    fields_of,
    limits_of,
    payload_of,
)
from mainspring.cli.output import Output, confirm, status
from mainspring.cli.pausing import Until, Why, pause_of, until_of
from mainspring.cli.tables.datacenters import datacenters_of
from mainspring.cli.tables.jobs import Shown, show_details
from mainspring.config.loading import parse_labels
from mainspring.core.model.base.errors import Invalid

group = typer.Typer(name="jobs", help="Submit, look at and change jobs.", no_args_is_help=True)

Job: TypeAlias = Annotated[
    str, typer.Argument(help="The job's id, its name, or the last characters of its id.", metavar="JOB")
]
Jobs: TypeAlias = Annotated[
    list[str], typer.Argument(help="Ids, names, or the last characters of ids.", metavar="JOB…", show_default=False)
]


def register(application: typer.Typer) -> None:
    application.add_typer(group)


class RunMade(msgspec.Struct, rename="camel"):
    run_id: str
    status: str
    warnings: list[str] = []


@command(group, "submit", makes_store=True)
async def submit(
    api: Client,
    out: Output,
    task: Annotated[str | None, typer.Argument(help="The task to run.", metavar="[TASK]", show_default=False)] = None,
    payload: Payload = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            "-a",
            help="An argument of the task, instead of --payload; JSON, or else a text. Can be repeated.",
            metavar="NAME=VALUE",
            show_default=False,
        ),
    ] = None,
    cron: Annotated[
        str | None, typer.Option("--cron", help='Again and again, by an expression such as "0 30 9 * * MON".')
    ] = None,
    tz: Annotated[
        str | None, typer.Option("--tz", help="The time zone of --cron; UTC without.", show_default=False)
    ] = None,
    every: Annotated[str | None, typer.Option("--every", help="Again and again, such as every 10m.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="Once, at this time, such as 2030-12-31T23:59:59Z.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", help="Once, after this long, such as 10m.")] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="The queue, instead of that of the task.", show_default=False)
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", min=1, max=10, help="1 urgent … 10 idle.", show_default=False)
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(
            "--retries", min=0, help="How often it is tried again, instead of as the task declares.", show_default=False
        ),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="How long one attempt may take, such as 30s.", show_default=False)
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option("--unique", help="A key: the same one again makes no second job.", show_default=False),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="A name; a recurring job needs one.", show_default=False)
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Whose it is.", show_default=False)] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag; can be repeated.", show_default=False)] = None,
    ordering_key: Annotated[
        str | None,
        typer.Option("--ordering-key", help="Runs of one key happen one at a time, in order.", show_default=False),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option("--retention", help="How long it is kept: short, standard, long or audit.", show_default=False),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            "--placement", help="Over several servers: runs of one key lie together on one.", show_default=False
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            help="A label that its worker must have; can be repeated.",
            metavar="NAME=VALUE",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            help="So many of a key at a time, or starts in a period; can be repeated.",
            metavar="KEY=MOST[/PERIOD]",
            show_default=False,
        ),
    ] = None,
    datacenters: Annotated[
        str | None,
        typer.Option(
            "--datacenters",
            help="Where it goes: us,eu or all for a run in each; us>eu>30s for the first that is there; any.",
            show_default=False,
        ),
    ] = None,
    depends_on: Annotated[
        list[str] | None,
        typer.Option(
            "--depends-on", help="A run that it waits for; can be repeated.", metavar="RUN", show_default=False
        ),
    ] = None,
    when: Annotated[
        str | None,
        typer.Option(
            "--when",
            help="With --depends-on: all-succeeded, all-done, any-succeeded or any-failed; all-succeeded without.",
            show_default=False,
        ),
    ] = None,
    set_: Set = None,
    wait: Wait = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a job that no live worker can run, instead of warning.")
    ] = False,
) -> None:
    """Create a job that runs now, later, or repeatedly. It is committed when the command returns.

    Examples:

    mainspring jobs submit send_welcome --arg user_id=42 --wait

    mainspring jobs submit send_welcome --payload '{"user_id": 42}' --delay 10m --retries 5

    mainspring jobs submit report --name weekly-report --cron "0 30 9 * * MON" --tz Europe/Paris

    mainspring jobs submit http --payload '{"url": "https://example.org/ping"}' --unique ping-today

    mainspring jobs submit sync --arg customer=7 --limit customer:{payload.customer}=3 --limit api=100/1m

    mainspring jobs submit report --name report --cron "0 6 * * *" --datacenters us,eu

    mainspring jobs submit report --depends-on 019a8c4b6f2c70008042b1c2d3e4f506 --when all-done
    """
    if payload is not None and arg:
        raise Invalid("--arg", "contradicts --payload")
    recurring = cron is not None or every is not None
    if wait and recurring:
        raise Invalid("--wait", "is for a job that runs once")
    body: dict[str, object] = {
        "task": task,
        "payload": payload_of(payload) if payload is not None else arguments_of(arg) if arg else None,
        "cronExpression": cron,
        "timezone": tz,
        "every": every,
        "scheduleTime": at,
        "delay": delay,
        "queue": queue,
        "priority": priority,
        "maxRetries": retries,
        "timeout": timeout,
        "name": name,
        "owner": owner,
        "tags": tag or None,
        "orderingKey": ordering_key,
        "retention": retention,
        "placement": placement,
        "requires": parse_labels(require, "--require") if require else None,
        "datacenters": None if datacenters is None else datacenters_of(datacenters),
        "limits": limits_of(limit) if limit else None,
        "dependsOn": [await api.run(run) for run in depends_on] if depends_on else None,
        "when": when,
        "tenant": api.tenant,
        # With a key the request can be repeated if its response is lost.
        "idempotencyKey": unique if unique is not None else uuid.uuid4().hex,
    }
    given = {field: value for field, value in body.items() if value is not None}
    made = await api.ask(
        "POST",
        "/v1/jobs",
        body={**given, **fields_of(set_)},
        query={"strict": "true"} if strict else None,
        repeatable=True,
    )
    job = read(made, Shown)
    for warning in job.warnings:
        out.warn(warning)
    if wait:
        await wait_for(api, out, job.job_id)
        return
    coming = f", next {out.time(job.next_fires[0])}" if recurring and job.next_fires else ""
    out.tell(made, [job.job_id], lambda: out.print(f"job {job.job_id} is {job.status}{coming}"))


@command(group, "list")
async def list_jobs(
    api: Client,
    out: Output,
    status_: Status = None,
    recurring: Annotated[bool, typer.Option("--recurring", help="Only recurring jobs.")] = False,
    one_off: Annotated[bool, typer.Option("--one-off", help="Only jobs that run once.")] = False,
    task: Task = None,
    queue: Queue = None,
    tag: Tag = None,
    text: Contains = None,
    after: After = None,
    before: Before = None,
    limit: Limit = 50,
) -> None:
    """List jobs, newest first. A job must match every filter.

    Examples:

    mainspring jobs list --recurring

    mainspring jobs list --status failed --task send_welcome --limit 10

    mainspring jobs list --tag nightly --quiet | xargs mainspring jobs pause
    """
    if recurring and one_off:
        raise Invalid("--one-off", "contradicts --recurring")
    query = {
        "status": status_,
        "kind": "recurring" if recurring else "oneOff" if one_off else None,
        "task": task,
        "queue": queue,
        "tag": tag,
        "text": text,
        "createdAfter": after,
        "createdBefore": before,
        "tenant": api.tenant,
    }
    found = await api.pages("/v1/jobs", query, limit)
    jobs = [read(item, Shown) for item in found.items]

    def show() -> None:
        more = ("QUEUE", "TENANT", "PRIORITY") if out.roomy else ()
        out.rows(
            ("JOB", "NAME", "TASK", "STATUS", "NEXT", *more, "WHEN"),
            [
                (
                    out.id(job.job_id),
                    job.name,
                    job.task,
                    status(job.status),
                    out.time(job.next_fires[0]) if job.next_fires else "",
                    *((job.queue, job.tenant, str(job.priority)) if out.roomy else ()),
                    job.schedule,
                )
                for job in jobs
            ],
            right=("PRIORITY",),
        )
        if found.next_cursor is not None:
            out.say(f"there are more than these {len(jobs)}: --limit")

    out.tell(found, [job.job_id for job in jobs], show)


@command(group, "show")
async def show_job(api: Client, out: Output, job: Job) -> None:
    """Show a job: its schedule, policies, payload and next ticks.

    Example: mainspring jobs show weekly-report
    """
    found = await api.ask("GET", f"/v1/jobs/{await api.job(job)}")
    shown = read(found, Shown)
    out.tell(found, [shown.job_id], lambda: show_details(out, shown))
    for warning in shown.warnings:
        out.warn(warning)


@command(group, "update")
async def update(
    api: Client,
    out: Output,
    job: Job,
    set_: Set = None,
    payload: Payload = None,
    why: Annotated[str, typer.Option("--why", help="For those who read its history.", show_default=False)] = "",
    version: Annotated[
        int | None,
        typer.Option("--version", min=1, help="Only if this is its version now.", show_default=False),
    ] = None,
) -> None:
    """Change a job; options that you omit keep their values. A recurring job gets a new version.

    A one-off job can be changed until it starts. The command prints the fields that changed.

    Examples:

    mainspring jobs update weekly-report --set cronExpression="0 0 8 * * MON" --why "earlier"

    mainspring jobs update weekly-report --set priority=2 --set tags='["finance"]'
    """
    identifier = await api.job(job)
    body = fields_of(set_)
    if payload is not None:
        body["payload"] = payload_of(payload)
    if not body:
        raise Invalid("--set", "nothing says what to change", "for example --set priority=2")
    if why:
        body["why"] = why
    if version is not None:
        body["expectedVersion"] = version
    before = read(await api.ask("GET", f"/v1/jobs/{identifier}"), dict[str, Raw])
    changed = await api.ask("PATCH", f"/v1/jobs/{identifier}", body=body)
    for warning in read(changed, Shown).warnings:
        out.warn(warning)

    def show() -> None:
        after = read(changed, dict[str, Raw])
        for field in sorted(before.keys() | after.keys()):
            old, new = (bytes(side.get(field, Raw(b"null"))).decode() for side in (before, after))
            if old != new and field not in ("updatedAt", "nextFires", "warnings"):
                out.print(Text(f"{field}: ", "bold") + Text(old, "red") + " → " + Text(new, "green"))

    out.tell(changed, [identifier], show)


@command(group, "cancel")
async def cancel(
    api: Client,
    out: Output,
    jobs: Annotated[
        list[str] | None, typer.Argument(help="Ids, names, or the last characters of ids.", metavar="[JOB…]")
    ] = None,
    purge: Annotated[bool, typer.Option("--purge", help="Delete what has ended, with its history.")] = False,
    status_: Status = None,
    task: Task = None,
    queue: Queue = None,
    tag: Tag = None,
    text: Contains = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Cancel jobs, and ask their runs to stop. Select them by id or name, or recurring ones by a filter.

    A schedule that was removed from the code fires until it is cancelled. A schedule that an application still declares
    is created again when the application starts.

    Examples:

    mainspring jobs cancel nightly-report

    mainspring jobs cancel --tag old --dry-run

    mainspring jobs cancel 3f2a90c14b7e --purge --yes
    """
    filters = {"status": status_, "task": task, "queue": queue, "tag": tag, "text": text, "everything": everything}
    if not jobs:
        if purge:
            raise Invalid("--purge", "is for jobs that are named")
        await on_many(api, out, "cancel", "jobs", filters, dry_run=dry_run, yes=yes)
        return
    if any(filters.values()) or dry_run:
        raise Invalid("job", "cannot be named together with a filter")
    if purge:
        confirm(f"delete {len(jobs)} job{'s' if len(jobs) > 1 else ''} for good, with all history", yes)

    async def one(text: str) -> tuple[Raw, str, str]:
        identifier = await api.job(text)
        answer = await api.ask("DELETE", f"/v1/jobs/{identifier}", query={"purge": True} if purge else None)
        return answer, identifier, f"job {text} is {read(answer, dict[str, str])['status']}"

    await each(out, jobs, one)


@command(group, "pause")
async def pause(api: Client, out: Output, jobs: Jobs, until: Until = None, why: Why = "") -> None:
    """Pause recurring jobs: their ticks are recorded as skipped until you resume them. Active runs continue.

    Examples:

    mainspring jobs pause weekly-report

    mainspring jobs pause weekly-report --until 18:00 --why "the bank is closed"
    """
    await _each(api, out, jobs, "pause", pause_of(until, why, api.clock.now()))


@command(group, "resume")
async def resume(api: Client, out: Output, jobs: Jobs) -> None:
    """Resume paused jobs.

    Example: mainspring jobs resume weekly-report
    """
    await _each(api, out, jobs, "resume")


@command(group, "run")
async def run(
    api: Client,
    out: Output,
    job: Job,
    payload: Payload = None,
    datacenter: Annotated[
        str | None, typer.Option("--datacenter", help="Where, of a job that goes to several.", show_default=False)
    ] = None,
    wait: Wait = False,
) -> None:
    """Run jobs now: a recurring job outside its schedule, a one-off job once more.

    Examples:

    mainspring jobs run weekly-report --wait

    mainspring jobs run weekly-report --payload '{"week": 12}'
    """
    body: dict[str, object] = {} if payload is None else {"payload": payload_of(payload)}
    if datacenter is not None:
        body["datacenter"] = datacenter
    made = await api.ask("POST", f"/v1/jobs/{await api.job(job)}/run", body=body)
    run = read(made, RunMade)
    for warning in run.warnings:
        out.warn(warning)
    if wait:
        await wait_for(api, out, run.run_id)
    else:
        out.tell(made, [run.run_id], lambda: out.print(f"run {run.run_id} is {run.status}"))


@command(group, "next")
async def next_(
    api: Client,
    out: Output,
    job: Job,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=100, help="How many fires.")] = 5,
) -> None:
    """Show the next ticks of a job.

    Example: mainspring jobs next weekly-report -n 3 --utc
    """
    identifier = await api.job(job)
    found = await api.ask("GET", f"/v1/jobs/{identifier}/next", query={"n": count})

    def show() -> None:
        coming = read(found, _Next)
        fires = coming.ticks or [_ComingTick(fire, fire) for fire in coming.next_fires]
        for tick in fires:
            moved = "" if tick.starts in (None, tick.scheduled_for) else f", starts {tick.starts}"
            why = f"  {'skipped: ' if tick.starts is None else ''}{tick.reason}{moved}" if tick.reason else ""
            from_now = "" if out.shows_utc else f"  {out.time(tick.scheduled_for)}"
            out.print(f"{tick.scheduled_for}{from_now}{why}")
        if not fires:
            out.say("it does not fire again")

    out.tell(found, [identifier], show)


@command(group, "backfill")
async def backfill(
    api: Client,
    out: Output,
    job: Job,
    since: Annotated[str, typer.Option("--since", help="From this time on: RFC 3339.")],
    until: Annotated[str, typer.Option("--until", help="To before this time: RFC 3339.")],
    dry_run: DryRun = False,
) -> None:
    """Run past ticks that have no run: each one in the range gets a run. Repeating the command creates no second run.

    Example: mainspring jobs backfill weekly-report --since 2026-01-01T00:00:00Z --until 2026-02-01T00:00:00Z --dry-run
    """
    identifier = await api.job(job)
    body = {"since": since, "until": until, "dryRun": dry_run}
    answer = await api.ask("POST", f"/v1/jobs/{identifier}/backfill", body=body, repeatable=True)

    def show() -> None:
        found = read(answer, _Backfill)
        missing = len(found.scheduled_for)
        words = f"{missing} would be made" if dry_run else f"{found.made} made"
        out.print(f"{found.ticks} ticks, {found.ticks - missing} had a run, {words}")
        for tick in found.scheduled_for if dry_run else ():
            out.print(tick)

    out.tell(answer, [identifier], show)


@command(group, "history")
async def history(
    api: Client,
    out: Output,
    job: Job,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Every tick and what was decided about it, instead of the runs.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", help="With --ledger: from this time on; the last day without.", show_default=False),
    ] = None,
    limit: Limit = 50,
) -> None:
    """Show the runs of a job, newest first; or its ledger, oldest first.

    Examples:

    mainspring jobs history weekly-report

    mainspring jobs history weekly-report --ledger --since 2026-01-01T00:00:00Z
    """
    from mainspring.cli.tables.runs import Shown as Run
    from mainspring.cli.tables.runs import show_runs

    identifier = await api.job(job)
    if not ledger:
        if since is not None:
            raise Invalid("--since", "is for --ledger")
        runs = await api.pages(f"/v1/jobs/{identifier}/runs", {}, limit)
        items = [read(item, Run) for item in runs.items]
        out.tell(
            runs, [item.run_id for item in items], lambda: show_runs(out, items, more=runs.next_cursor is not None)
        )
        return
    query = {"since": since, "limit": min(limit, 1_000)}
    answer = await api.ask("GET", f"/v1/jobs/{identifier}/ledger", query=query)
    ticks = read(answer, _Ledger).items

    def show() -> None:
        several = any(tick.datacenter for tick in ticks)
        out.rows(
            ("TICK", *(("DATACENTER",) if several else ()), "DECISION", "RUN", "VERSION", "REASON"),
            [
                (
                    tick.scheduled_for if tick.until is None else f"{tick.scheduled_for} … {tick.until} ({tick.ticks})",
                    *((tick.datacenter or "",) if several else ()),
                    tick.decision,
                    out.id(tick.run_id or ""),
                    str(tick.job_version),
                    tick.reason,
                )
                for tick in ticks
            ],
            right=("VERSION",),
        )

    out.tell(answer, [tick.run_id for tick in ticks if tick.run_id is not None], show)


class _ComingTick(msgspec.Struct, rename="camel"):
    scheduled_for: str
    starts: str | None
    reason: str = ""


class _Next(msgspec.Struct, rename="camel"):
    next_fires: list[str]
    ticks: list[_ComingTick] = []


class _Backfill(msgspec.Struct, rename="camel"):
    ticks: int
    made: int
    scheduled_for: list[str]


class _Tick(msgspec.Struct, rename="camel"):
    scheduled_for: str
    decision: str
    job_version: int
    reason: str = ""
    run_id: str | None = None
    ticks: int = 1
    until: str | None = None
    datacenter: str | None = None


class _Ledger(msgspec.Struct):
    items: list[_Tick]


async def _each(api: Client, out: Output, jobs: list[str], verb: str, body: dict[str, object] | None = None) -> None:
    async def one(text: str) -> tuple[Raw, str, str]:
        identifier = await api.job(text)
        answer = await api.ask("POST", f"/v1/jobs/{identifier}/{verb}", body=body, repeatable=True)
        return answer, identifier, f"job {text} is {read(answer, dict[str, str])['status']}{until_of(answer)}"

    await each(out, jobs, one)
