"""Runs as the commands print them."""

import msgspec

from mainspring.cli.output import Output, format_elapsed, format_span, format_status
from mainspring.core.model.base.headline import find_headline
from mainspring.core.model.base.instant import parse_instant
from mainspring.core.model.runs.reserved import FAN_OUT
from mainspring.http.schemas.runs import RunOut


def format_result(run: RunOut) -> str:
    return "" if run.result is msgspec.UNSET else bytes(run.result).decode()


def find_start(run: RunOut) -> str | None:
    """Return when the run started; for a fan-out, which starts again at every poll of its members, its creation."""
    return run.created_at if run.task == FAN_OUT and run.start_time is not None else run.start_time


def describe_obstacle(run: RunOut) -> str:
    """Return one line on why the run does not progress, or did not succeed."""
    if run.status in ("succeeded", "running", "queued", "scheduled"):
        return ""
    return find_headline(run.error_message or "") or run.reason


def show_runs(out: Output, runs: list[RunOut], *, more: bool) -> None:
    roomy = ("QUEUE", "TENANT", "NAME") if out.roomy else ()
    out.rows(
        ("RUN", "TASK", "STATUS", "DUE", "TOOK", "TRY", *roomy, "WHY"),
        [
            (
                out.id(run.run_id),
                run.task,
                format_status(run.status),
                out.time(run.scheduled_for),
                _format_usage(out, run),
                str(run.attempt_number),
                *((run.queue, run.tenant, run.name) if out.roomy else ()),
                describe_obstacle(run),
            )
            for run in runs
        ],
        right=("TOOK", "TRY"),
        empty="no matching runs",
    )
    if more:
        out.report(f"there are more than these {len(runs)}: --limit")


def _format_usage(out: Output, run: RunOut) -> str:
    start = find_start(run)
    if run.status == "running" and start is not None:
        return format_span(max(out.now() - parse_instant(start), 0))
    return format_elapsed(start, run.end_time)
