"""Runs as the commands print them."""

import msgspec

from mainspring.cli.client.target import Raw
from mainspring.cli.output import Output, format_elapsed, format_span, format_status
from mainspring.core.model.base.headline import find_headline
from mainspring.core.model.base.instant import parse_instant
from mainspring.core.model.runs.reserved import FAN_OUT


class Attempt(msgspec.Struct, rename="camel"):
    attempt_number: int
    outcome: str
    start_time: str
    end_time: str
    reason: str = ""
    error_message: str | None = None


class RunDetails(msgspec.Struct, rename="camel"):
    """The fields of a run that commands print."""

    run_id: str
    job_id: str
    status: str
    task: str
    tenant: str
    queue: str
    priority: int
    scheduled_for: str
    created_at: str
    attempt_number: int
    max_retries: int
    name: str = ""
    reason: str = ""
    tick: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    executor_id: str | None = None
    error_message: str | None = None
    result: Raw | msgspec.UnsetType = msgspec.UNSET
    payload: Raw | msgspec.UnsetType = msgspec.UNSET
    progress: str | None = None
    progress_note: str | None = None
    replay_of: str | None = None
    trace_id: str | None = None
    fingerprint: str | None = None
    tags: tuple[str, ...] = ()
    owner: str | None = None
    attempts: list[Attempt] = []

    @property
    def result_text(self) -> str:
        return "" if self.result is msgspec.UNSET else bytes(self.result).decode()

    @property
    def began(self) -> str | None:
        """When the run started. A fan-out starts again at every poll of its members, so its start is its creation."""
        return self.created_at if self.task == FAN_OUT and self.start_time is not None else self.start_time

    @property
    def why(self) -> str:
        """One line on why the run does not progress, or did not succeed."""
        if self.status in ("succeeded", "running", "queued", "scheduled"):
            return ""
        return find_headline(self.error_message or "") or self.reason


def show_runs(out: Output, runs: list[RunDetails], *, more: bool) -> None:
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
                run.why,
            )
            for run in runs
        ],
        right=("TOOK", "TRY"),
        empty="no matching runs",
    )
    if more:
        out.report(f"there are more than these {len(runs)}: --limit")


def _format_usage(out: Output, run: RunDetails) -> str:
    if run.status == "running" and run.began is not None:
        return format_span(max(out.now() - parse_instant(run.began), 0))
    return format_elapsed(run.began, run.end_time)
