"""Filters for stores that check rows one by one. SQLite expresses the same in SQL."""

from typing import Protocol

from mainspring.core.model.base.ids import JobId, RunId
from mainspring.core.model.runs.new_run import About
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.schedules.job import JobSpec, JobState
from mainspring.core.ports.storage.catalog import JobFilter, RunFilter


class ListedRun(Protocol):
    """The fields of a run that a filter checks, of a row or of a view."""

    @property
    def id(self) -> RunId: ...
    @property
    def tenant(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def job_id(self) -> JobId | None: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def about(self) -> About | None: ...


class ListedJob(Protocol):
    @property
    def id(self) -> JobId: ...
    @property
    def state(self) -> JobState: ...
    @property
    def spec(self) -> JobSpec: ...


def is_wanted_run(run: ListedRun, shown: RunState, wanted: RunFilter) -> bool:
    """Report whether a run matches. ``shown``: its public state.

    The caller checks whether it is a dead letter and when it was created.
    """
    name, tags = ("", ()) if run.about is None else (run.about.name, run.about.tags)
    return (
        wanted.tenant in (None, run.tenant)
        and (not wanted.states or shown in wanted.states)
        and wanted.task in ("", run.task)
        and wanted.queue in ("", run.queue)
        and (not wanted.tag or wanted.tag in tags)
        and (wanted.job is None or wanted.job == (run.job_id or run.id))
        and not (wanted.one_off and run.job_id is not None)
        and wanted.fingerprint in ("", run.fingerprint)
        and _says(wanted.text, name, run.task, run.id)
    )


def is_wanted_job(job: ListedJob, wanted: JobFilter) -> bool:
    spec = job.spec
    return (
        (not wanted.states or job.state in wanted.states)
        and wanted.task in ("", spec.task)
        and wanted.queue in ("", spec.queue)
        and (not wanted.tag or wanted.tag in spec.tags)
        and wanted.source in ("", spec.source)
        and _says(wanted.text, spec.name, spec.task, job.id)
    )


def _says(text: str, *places: str) -> bool:
    return any(text.lower() in place.lower() for place in places)
