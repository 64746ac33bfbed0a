"""``mainspring jobs submit``: create a job."""

import uuid
from typing import Annotated

import typer

from mainspring.cli.client.command import command
from mainspring.cli.client.target import Client, decode_answer
from mainspring.cli.client.waiting import wait_for
from mainspring.cli.fields import (
    Payload,
    Set,
    Wait,
    read_arguments,
    read_fields,
    read_limits,
    read_payload,
)
from mainspring.cli.output import Output
from mainspring.cli.tables.datacenters import parse_datacenters
from mainspring.config.loading import parse_labels
from mainspring.core.model.base.errors import Invalid
from mainspring.features.jobs.commands.group import group
from mainspring.http.schemas.job_answers import JobOut


def register(application: typer.Typer) -> None:
    application.add_typer(group)


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
            help="An argument of the task, as JSON or text, instead of --payload. Repeatable.",
            metavar="NAME=VALUE",
            show_default=False,
        ),
    ] = None,
    cron: Annotated[
        str | None, typer.Option("--cron", help='Repeat by a cron expression, such as "0 30 9 * * MON".')
    ] = None,
    tz: Annotated[
        str | None, typer.Option("--tz", help="The time zone of --cron. Default: UTC.", show_default=False)
    ] = None,
    every: Annotated[str | None, typer.Option("--every", help="Repeat at this interval, such as 10m.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="Run once at this time, such as 2030-12-31T23:59:59Z.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", help="Run once after this delay, such as 10m.")] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="The queue. Default: the queue of the task.", show_default=False)
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority", min=1, max=10, help="The priority, from 1 (highest) to 10 (lowest).", show_default=False
        ),
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(
            "--retries", min=0, help="The maximum number of retries. Default: that of the task.", show_default=False
        ),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="The time limit of one attempt, such as 30s.", show_default=False)
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option(
            "--unique",
            help="An idempotency key: a request with the same key creates no second job.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The name. Required for a recurring job.", show_default=False)
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="The owner of the job.", show_default=False)] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag. Repeatable.", show_default=False)] = None,
    ordering_key: Annotated[
        str | None,
        typer.Option(
            "--ordering-key", help="Execute runs with the same key one at a time, in order.", show_default=False
        ),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option("--retention", help="The retention class: short, standard, long or audit.", show_default=False),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            "--placement", help="In a sharded store, keep runs with the same key on one server.", show_default=False
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            help="A label that the worker must have. Repeatable.",
            metavar="NAME=VALUE",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            help="Limit the active runs of a key, or its starts in a period. Repeatable.",
            metavar="KEY=MOST[/PERIOD]",
            show_default=False,
        ),
    ] = None,
    datacenters: Annotated[
        str | None,
        typer.Option(
            "--datacenters",
            help="us,eu or all: one run in each; us>eu>30s: the first that has a worker; any.",
            show_default=False,
        ),
    ] = None,
    depends_on: Annotated[
        list[str] | None,
        typer.Option(
            "--depends-on", help="A run that the job depends on. Repeatable.", metavar="RUN", show_default=False
        ),
    ] = None,
    when: Annotated[
        str | None,
        typer.Option(
            "--when",
            help="With --depends-on: all-succeeded (default), all-done, any-succeeded or any-failed.",
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

    mainspring jobs submit report --depends-on 8042b1c2d3e4 --when all-done
    """
    if payload is not None and arg:
        raise Invalid("--arg", "contradicts --payload")
    recurring = cron is not None or every is not None
    if wait and recurring:
        raise Invalid("--wait", "applies to one-off jobs only")
    body: dict[str, object] = {
        "task": task,
        "payload": read_payload(payload) if payload is not None else read_arguments(arg) if arg else None,
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
        "datacenters": None if datacenters is None else parse_datacenters(datacenters),
        "limits": read_limits(limit) if limit else None,
        "dependsOn": [await api.run(run) for run in depends_on] if depends_on else None,
        "when": when,
        "tenant": api.tenant,
        # With a key the request can be repeated if its response is lost.
        "idempotencyKey": unique if unique is not None else uuid.uuid4().hex,
    }
    given = {field: value for field, value in body.items() if value is not None}
    answer = await api.ask(
        "POST",
        "/v1/jobs",
        body={**given, **read_fields(set_)},
        query={"strict": "true"} if strict else None,
        repeatable=True,
    )
    job = decode_answer(answer, JobOut)
    for warning in job.warnings:
        out.warn(warning)
    if wait:
        await wait_for(api, out, job.job_id)
        return
    upcoming = f", next {out.time(job.next_fires[0])}" if recurring and job.next_fires else ""
    out.render(answer, [job.job_id], lambda: out.print(f"job {job.job_id} is {job.status}{upcoming}"))
