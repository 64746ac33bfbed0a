"""``mainspring schedules``: the recurring jobs."""

import typer

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer
from mainspring.cli.fields import Contains, Limit, Queue, Status, Tag, Task
from mainspring.cli.output import Output, format_status
from mainspring.cli.tables.jobs import format_schedule
from mainspring.http.schemas.job_answers import JobOut

group = typer.Typer(name="schedules", help="List recurring jobs and their next ticks.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.add_typer(group)


@command(group, "list")
async def list_schedules(
    api: Client,
    out: Output,
    status_: Status = None,
    task: Task = None,
    queue: Queue = None,
    tag: Tag = None,
    text: Contains = None,
    limit: Limit = 50,
) -> None:
    """List schedules, newest first. A schedule is a recurring job: `mainspring jobs` pauses, changes and explains it.

    Examples:

    mainspring schedules list

    mainspring schedules list --status paused --tag nightly
    """
    query = {"status": status_, "task": task, "queue": queue, "tag": tag, "text": text, "tenant": api.tenant}
    found = await api.pages("/v1/jobs", {**query, "kind": "recurring"}, limit)
    jobs = [decode_answer(item, JobOut) for item in found.items]

    def show() -> None:
        more = ("QUEUE", "TENANT") if out.roomy else ()
        out.rows(
            ("SCHEDULE", "TASK", "STATUS", "NEXT", *more, "WHEN"),
            [
                (
                    job.name,
                    job.task,
                    format_status(job.status),
                    out.time(job.next_fires[0]) if job.next_fires else "",
                    *((job.queue, job.tenant) if out.roomy else ()),
                    format_schedule(job),
                )
                for job in jobs
            ],
            empty="no matching schedules",
        )
        if found.next_cursor is not None:
            out.report(f"more than {len(jobs)} schedules match; use --limit")

    out.render(found, [job.job_id for job in jobs], show)
