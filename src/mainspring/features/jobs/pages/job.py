"""Dashboard page of one job: schedule, ticks, runs and versions."""

import asyncio
import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.features.jobs.operations.job import get_job
from mainspring.features.jobs.operations.runs import job_runs, next_fires, pause_job, resume_job, run_job
from mainspring.features.jobs.operations.versions import Versions, job_versions, restore_version
from mainspring.features.jobs.pages.jobs import describe_schedule, read_strips
from mainspring.http.schemas.bulk import BulkOut
from mainspring.http.schemas.differences import Change
from mainspring.http.schemas.job_answers import JobOut
from mainspring.web.formatting import plural
from mainspring.web.page import ActionReply, Pages, Reply, Visit, read_json_field
from mainspring.web.text import pretty

job = Pages()

_MAX_TICKS = 50
_MAX_RUNS = 15
_MAX_TICKS = 8
_MAX_VERSIONS = 10
_KINDS = {"-": "was", "+": "is", " ": "same"}


class DiffLine(NamedTuple):
    """A line of a diff: removed, added or unchanged."""

    kind: str
    text: str


@job.page("GET", "/jobs/{id}", permission=Permission.READ)
async def show_job(visit: Visit[Any]) -> Reply:
    found: JobOut = await visit.ask(get_job, path=visit.path)
    if found.version is None:
        return ActionReply(words="", to=f"runs/{found.job_id}")
    strips, fires, runs, versions = await asyncio.gather(
        read_strips(visit, [found.job_id], _MAX_TICKS),
        visit.ask(next_fires, path=visit.path, query={"n": _MAX_TICKS}),
        visit.ask(job_runs, path=visit.path, query={"limit": _MAX_RUNS}),
        visit.ask(job_versions, path=visit.path, query={"limit": _MAX_VERSIONS}),
    )
    return visit.show(
        "jobs/detail.html",
        job=found,
        words=describe_schedule(found),
        strip=strips.get(found.job_id, []),
        fires=fires,
        runs=runs.items,
        versions=_load_versions(versions),
        open=found.status in ("scheduled", "paused"),
    )


@job.page("POST", "/jobs/{id}/pause", permission=Permission.OPERATE)
async def do_pause(visit: Visit[Any]) -> Reply:
    body = {"why": visit.form.get("why", "")}
    if until := visit.form.get("until", ""):
        body["until"] = until
    await visit.ask(pause_job, path=visit.path, body=body)
    here = f"jobs/{visit.path['id']}"
    return ActionReply(words="Job paused. Its ticks are recorded as skipped.", to=here, undo=f"{here}/resume")


@job.page("POST", "/jobs/{id}/resume", permission=Permission.OPERATE)
async def do_resume(visit: Visit[Any]) -> Reply:
    await visit.ask(resume_job, path=visit.path)
    here = f"jobs/{visit.path['id']}"
    return ActionReply(words="Job resumed.", to=here, undo=f"{here}/pause")


@job.page("POST", "/jobs/{id}/run", permission=Permission.SUBMIT)
async def do_run(visit: Visit[Any]) -> Reply:
    payload = read_json_field(visit.form, "payload")
    made = await visit.ask(run_job, path=visit.path, body=None if payload is None else {"payload": payload})
    return ActionReply(words="Run started.", to=f"runs/{made.run_id}", leave=True)


@job.page("GET", "/jobs/{id}/cancel", permission=Permission.OPERATE)
async def ask_cancel(visit: Visit[Any]) -> Reply:
    """Render the part of the dialog that says which runs would be cancelled."""
    found: JobOut = await visit.ask(get_job, path=visit.path)
    return visit.show("jobs/would_cancel.html", runs=await _describe_affected_runs(visit, found.job_id))


@job.page("POST", "/jobs/{id}/cancel", permission=Permission.OPERATE)
async def do_cancel(visit: Visit[Any]) -> Reply:
    found: JobOut = await visit.ask(get_job, path=visit.path)
    runs = await _describe_affected_runs(visit, found.job_id)
    body = {"action": "cancel", "ids": [found.job_id], "why": visit.form.get("why", "").strip()}
    done: BulkOut = await visit.ask("act_on_many", body=body)
    words = f"Job cancelled{runs}." if done.changed else "The job had already ended."
    return ActionReply(words=words, to=f"jobs/{found.job_id}")


@job.page("POST", "/jobs/{id}/versions/{version}/restore", permission=Permission.OPERATE)
async def do_restore(visit: Visit[Any]) -> Reply:
    made: JobOut = await visit.ask(restore_version, path=visit.path)
    before = (made.version or 2) - 1
    here = f"jobs/{visit.path['id']}"
    return ActionReply(
        words=f"Version {visit.path['version']} restored as version {made.version}.",
        to=here,
        undo=f"{here}/versions/{before}/restore",
    )


async def _describe_affected_runs(visit: Visit[Any], job_id: str) -> str:
    """Describe the runs that are cancelled with a job."""
    dry = {"action": "cancel", "target": "runs", "jobId": job_id, "dryRun": True}
    waiting, running = await asyncio.gather(
        visit.ask("act_on_many", body={**dry, "status": "scheduled,queued,blocked"}),
        visit.ask("act_on_many", body={**dry, "status": "running"}),
    )
    more = " or more" if waiting.more else ""
    words = f"; {plural(waiting.matched, 'waiting run')}{more} cancelled" if waiting.matched else ""
    return f"{words}; {plural(running.matched, 'active run')} asked to stop" if running.matched else words


def _load_versions(found: Versions) -> list[dict[str, Any]]:
    """Return the versions with their changes."""
    return [
        {
            "version": item.version,
            "made_by": item.made_by,
            "made_at": item.made_at,
            "why": item.why,
            "changes": build_diffs(item.changes),
        }
        for item in found.items
    ]


def build_diffs(changes: Mapping[str, Change]) -> list[tuple[str, list[DiffLine]]]:
    """Return the diff lines of each changed field. Large values are shown by their size only."""
    return [
        (
            name,
            diff_lines(
                _format_side(change.before, change.bytes_before), _format_side(change.after, change.bytes_after)
            ),
        )
        for name, change in changes.items()
    ]


def diff_lines(before: str, after: str) -> list[DiffLine]:
    """Diff two texts line by line, with two lines of context."""
    if "\n" not in before + after:
        return [DiffLine("was", before), DiffLine("is", after)]
    # The first two lines are file headers.
    lines = list(difflib.unified_diff(before.split("\n"), after.split("\n"), n=2, lineterm=""))[2:]
    return [DiffLine("gap", "…") if line[0] == "@" else DiffLine(_KINDS[line[0]], line[1:]) for line in lines][1:]


def _format_side(value: msgspec.Raw | msgspec.UnsetType, size: int | msgspec.UnsetType) -> str:
    if isinstance(value, msgspec.UnsetType):
        return f"{size} bytes"
    text = pretty(value)
    return "–" if text in ("null", '""', "[]", "{}") else text
