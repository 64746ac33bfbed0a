"""Builds jobs from request bodies, and the answers about them."""

from typing import Annotated

from msgspec import UNSET, Meta

from mainspring.core.model.base.errors import Conflict, Invalid
from mainspring.core.model.runs.new_run import Idempotency, NewRun, fingerprint_of_request, made_once
from mainspring.core.model.schedules.closed_periods import ClosedPeriods
from mainspring.core.model.schedules.job import NewJob
from mainspring.core.ports.storage.answers import PutOutcome, PutResult, SubmitResult
from mainspring.http.context import Api
from mainspring.http.jobs.reading import apply_defaults, build_run, build_spec, check_key, read_payload, read_placement
from mainspring.http.operation import Answer
from mainspring.http.rendering.jobs import render_job
from mainspring.http.schemas.common import (
    Request,
)
from mainspring.http.schemas.jobs import JobFields, JobIn

KEY_HEADER = "idempotency-key"


class Submit(Request):
    strict: Annotated[bool, Meta(description="Refuse with 409 a job that no live worker can run.")] = False


async def make_run(api: Api, fields: JobFields, tenant: str, author: str, key: str | None) -> NewRun:
    ordering_key = "" if fields.ordering_key is UNSET else fields.ordering_key
    run_id = api.jobs.new_run_id(ordering_key, tenant=tenant, placement=read_placement(fields))
    run = build_run(fields, run_id, tenant, author)
    # The fingerprint covers the request alone, so it stays the same when the task declares other options.
    run = run if key is None else made_once(run, key)
    return apply_defaults(run, fields, await api.catalog.find(run.task))


async def make_job(api: Api, fields: JobFields, tenant: str, author: str, key: str | None) -> NewJob:
    if read_placement(fields):
        raise Invalid("placement", "is for one-off jobs", "a recurring one lies with its tenant")
    spec = build_spec(fields)
    payload = read_payload(fields)
    return NewJob(
        id=api.jobs.new_job_id(tenant, spec.name),
        spec=apply_defaults(spec, fields, await api.catalog.find(spec.task)),
        payload=payload,
        tenant=tenant,
        author=author,
        must_be_new=True,
        idempotency=None if key is None else Idempotency(key, fingerprint_of_request(spec, payload)),
    )


def read_key(fields: JobIn, header: str | None) -> str | None:
    """Return the idempotency key from the body or from the header."""
    return check_key(header if fields.idempotency_key is UNSET else fields.idempotency_key, header)


def build_conflict(run: NewRun, answer: SubmitResult) -> Conflict:
    """Build the error for a submission whose idempotency key or unique key belongs to another job."""
    if run.unique is not None and run.unique.otherwise == "reject":
        return Conflict(f"unique key {run.unique.key!r} is taken by job {answer.id}", answer.id)
    return Conflict(f"this idempotency key was used for another job, {answer.id}", answer.id)


def answer_put(put: PutResult, status: int, warnings: list[str], closed_periods: ClosedPeriods | None = None) -> Answer:
    if put.outcome is PutOutcome.EXISTS:
        raise Conflict(f"there is a job of this name, {put.job.id}", put.job.id)
    if put.outcome is PutOutcome.CONFLICT:
        raise Conflict(f"this idempotency key was used for another job, {put.job.id}", put.job.id)
    return Answer(
        status, render_job(put.job, closed_periods, warnings=warnings), {"location": f"/v1/jobs/{put.job.id}"}
    )
