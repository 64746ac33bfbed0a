"""``mainspring jobs``: list, show, change, cancel, pause and run jobs."""

from typing import Annotated

import typer
from rich.text import Text

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
    Set,
    Status,
    Tag,
    Task,
    Wait,
    Yes,
    read_fields,
    read_payload,
)
from mainspring.cli.output import Output, confirm, format_status
from mainspring.cli.pausing import Until, Why, build_pause, format_until
from mainspring.cli.tables.jobs import format_schedule, show_details
from mainspring.core.model.base.errors import Invalid
from mainspring.features.jobs.commands.group import Job, Jobs, group
from mainspring.http.schemas.job_answers import JobOut
from mainspring.http.schemas.runs import RunMade


def register(_application: typer.Typer) -> None:
    """Do nothing: importing this module adds its commands to the group of ``jobs``."""


@command(group, "list")
async def list_jobs(
    api: Client,
    out: Output,
    status_: Status = None,
    recurring: Annotated[bool, typer.Option("--recurring", help="Only recurring jobs.")] = False,
    one_off: Annotated[bool, typer.Option("--one-off", help="Only one-off jobs.")] = False,
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
    jobs = [decode_answer(item, JobOut) for item in found.items]

    def show() -> None:
        more = ("QUEUE", "TENANT", "PRIORITY") if out.roomy else ()
        out.rows(
            ("JOB", "NAME", "TASK", "STATUS", "NEXT", *more, "WHEN"),
            [
                (
                    out.id(job.job_id),
                    job.name,
                    job.task,
                    format_status(job.status),
                    out.time(job.next_fires[0]) if job.next_fires else "",
                    *((job.queue, job.tenant, str(job.priority)) if out.roomy else ()),
                    format_schedule(job),
                )
                for job in jobs
            ],
            right=("PRIORITY",),
            empty="no matching jobs",
        )
        if found.next_cursor is not None:
            out.report(f"more than {len(jobs)} jobs match; use --limit")

    out.render(found, [job.job_id for job in jobs], show)


@command(group, "show")
async def show_job(api: Client, out: Output, job: Job) -> None:
    """Show a job: its schedule, policies, payload and next ticks.

    Example: mainspring jobs show weekly-report
    """
    found = await api.ask("GET", f"/v1/jobs/{await api.job(job)}")
    shown = decode_answer(found, JobOut)
    out.render(found, [shown.job_id], lambda: show_details(out, shown))
    for warning in shown.warnings:
        out.warn(warning)


@command(group, "update")
async def update(
    api: Client,
    out: Output,
    job: Job,
    set_: Set = None,
    payload: Payload = None,
    why: Annotated[str, typer.Option("--why", help="The reason, kept with the version.", show_default=False)] = "",
    version: Annotated[
        int | None,
        typer.Option(
            "--version", min=1, help="Change the job only if this is its current version.", show_default=False
        ),
    ] = None,
) -> None:
    """Change a job; options that you omit keep their values. A recurring job gets a new version.

    A one-off job can be changed until it starts. The command prints the fields that changed.

    Examples:

    mainspring jobs update weekly-report --set cronExpression="0 0 8 * * MON" --why "earlier"

    mainspring jobs update weekly-report --set priority=2 --set tags='["finance"]'
    """
    identifier = await api.job(job)
    body = read_fields(set_)
    if payload is not None:
        body["payload"] = read_payload(payload)
    if not body:
        raise Invalid("--set", "no change given", "for example --set priority=2")
    if why:
        body["why"] = why
    if version is not None:
        body["expectedVersion"] = version
    before = decode_answer(await api.ask("GET", f"/v1/jobs/{identifier}"), dict[str, Raw])
    changed = await api.ask("PATCH", f"/v1/jobs/{identifier}", body=body)
    for warning in decode_answer(changed, JobOut).warnings:
        out.warn(warning)

    def show() -> None:
        after = decode_answer(changed, dict[str, Raw])
        for field in sorted(before.keys() | after.keys()):
            old, new = (bytes(side.get(field, Raw(b"null"))).decode() for side in (before, after))
            if old != new and field not in ("updatedAt", "nextFires", "warnings"):
                out.print(Text(f"{field}: ", "bold") + Text(old, "red") + " → " + Text(new, "green"))

    out.render(changed, [identifier], show)


@command(group, "cancel")
async def cancel(
    api: Client,
    out: Output,
    jobs: Annotated[
        list[str] | None, typer.Argument(help="Ids, names, or the last characters of ids.", metavar="[JOB…]")
    ] = None,
    purge: Annotated[bool, typer.Option("--purge", help="Also delete ended jobs with their history.")] = False,
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
            raise Invalid("--purge", "requires job ids or names")
        await act_on_many(api, out, "cancel", "jobs", filters, dry_run=dry_run, yes=yes)
        return
    if any(filters.values()) or dry_run:
        raise Invalid("job", "cannot be combined with a filter")
    if purge:
        confirm(f"delete {len(jobs)} job{'s' if len(jobs) > 1 else ''} permanently, with all history", yes)

    async def one(text: str) -> tuple[Raw, str, str]:
        identifier = await api.job(text)
        answer = await api.ask("DELETE", f"/v1/jobs/{identifier}", query={"purge": True} if purge else None)
        return answer, identifier, f"job {text} is {decode_answer(answer, dict[str, str])['status']}"

    await act_on_each(out, jobs, one)


@command(group, "pause")
async def pause(api: Client, out: Output, jobs: Jobs, until: Until = None, why: Why = "") -> None:
    """Pause recurring jobs: their ticks are recorded as skipped until you resume them. Active runs continue.

    Examples:

    mainspring jobs pause weekly-report

    mainspring jobs pause weekly-report --until 18:00 --why "the bank is closed"
    """
    await _act_on_each(api, out, jobs, "pause", build_pause(until, why, api.clock.now()))


@command(group, "resume")
async def resume(api: Client, out: Output, jobs: Jobs) -> None:
    """Resume paused jobs.

    Example: mainspring jobs resume weekly-report
    """
    await _act_on_each(api, out, jobs, "resume")


@command(group, "run")
async def run(
    api: Client,
    out: Output,
    job: Job,
    payload: Payload = None,
    datacenter: Annotated[
        str | None, typer.Option("--datacenter", help="The data center, for a job with several.", show_default=False)
    ] = None,
    wait: Wait = False,
) -> None:
    """Run jobs now: a recurring job outside its schedule, a one-off job once more.

    Examples:

    mainspring jobs run weekly-report --wait

    mainspring jobs run weekly-report --payload '{"week": 12}'
    """
    body: dict[str, object] = {} if payload is None else {"payload": read_payload(payload)}
    if datacenter is not None:
        body["datacenter"] = datacenter
    answer = await api.ask("POST", f"/v1/jobs/{await api.job(job)}/run", body=body)
    run = decode_answer(answer, RunMade)
    for warning in run.warnings:
        out.warn(warning)
    if wait:
        await wait_for(api, out, run.run_id)
    else:
        out.render(answer, [run.run_id], lambda: out.print(f"run {run.run_id} is {run.status}"))


async def _act_on_each(
    api: Client, out: Output, jobs: list[str], verb: str, body: dict[str, object] | None = None
) -> None:
    async def one(text: str) -> tuple[Raw, str, str]:
        identifier = await api.job(text)
        answer = await api.ask("POST", f"/v1/jobs/{identifier}/{verb}", body=body, repeatable=True)
        return (
            answer,
            identifier,
            f"job {text} is {decode_answer(answer, dict[str, str])['status']}{format_until(answer)}",
        )

    await act_on_each(out, jobs, one)
