"""Requests from a log: decoded, checked and submitted with the code of ``POST /v1/jobs``."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mainspring.core.model.access.access import DEFAULT_TENANT, Principal, Role
from mainspring.core.model.base.errors import Invalid, NotFound, StoreUnavailable
from mainspring.core.model.base.ids import RunId, check_id, decode_shard
from mainspring.core.model.events.record_mapping import RecordMapping
from mainspring.core.model.runs.names import check_tenant
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.traces import traced
from mainspring.core.model.schedules.job import NewJob
from mainspring.core.ports.ingest import JobRequest, Rejection
from mainspring.features.ingest.changes import JobChange, JobChanger
from mainspring.features.ingest.mappings import build_job, build_patch, read_action, read_tenant
from mainspring.http.admission import Allowance
from mainspring.http.context import Api
from mainspring.http.jobs.reading import check_key, explain_past_time
from mainspring.http.jobs.submission import answer_put, build_conflict, make_job, make_run
from mainspring.http.problems import Problem, RequestFieldError, build_problem, decode, restore_names
from mainspring.http.schemas.jobs import JobIn, is_recurring
from mainspring.http.schemas.workflows import read_dependencies

#: Statuses that are not the request's fault: it is retried later.
_TEMPORARY = (429, 503)
_AUTHOR = "ingest"
_NO_QUOTA = Allowance(0)


class JobCreator:
    """Creates, updates and cancels jobs as the requests of a log ask.

    ``tenant``: the tenant of all requests; None if each request names its own. ``mappings``: for records of other
    programs, by topic. An administrator decides in the settings what these may update or cancel.
    """

    def __init__(self, api: Api, tenant: str | None, mappings: Mapping[str, RecordMapping] | None = None) -> None:
        self._api = api
        self._tenant = tenant
        self._mappings = mappings or {}
        self._changer = JobChanger(api)
        #: Principals by tenant. Access to the log permits submitting jobs, and nothing else.
        self._principals: dict[str | None, Principal] = {}

    async def create(self, requests: Sequence[JobRequest], waiting: Mapping[str, Rejection]) -> list[Rejection | None]:
        """Make the jobs in order of arrival. Each answer is None if the job exists, or why it was not made.

        1. A repeated request with the same key makes no second job.
        2. When a tenant exceeds a quota, all its later requests of that quota wait, too: one may have the same ordering
           key or depend on the first.
        3. ``waiting``: the quotas whose requests already wait, with the reason.
        4. A request whose job was made before needs no room and does not wait.
        """
        answers: list[Rejection | None] = [None] * len(requests)
        batch = _Batch(answers, dict(waiting))
        for index, request in enumerate(requests):
            try:
                new = await self._build_request(request)
            except StoreUnavailable:
                raise
            except Exception as error:
                answers[index] = _build_refusal(error)
                continue
            if isinstance(new, NewRun) and new.after is None:
                batch.runs.append((index, new))
            else:
                # The job may depend on an earlier one of this batch.
                await self._submit(batch)
                await self._create_alone(index, new, batch)
        await self._submit(batch)
        return answers

    async def _create_alone(self, index: int, new: NewRun | NewJob | JobChange, batch: "_Batch") -> None:
        """Submit one request alone, so that a missing dependency of it fails no other request."""
        api = self._api
        try:
            if isinstance(new, JobChange):
                if batch.wait(index, new):
                    return
                await self._changer.apply(new, Principal(name=_AUTHOR, role=Role.OPERATOR, tenant=new.tenant))
                return
            if batch.is_waiting(new):
                room = _NO_QUOTA
            elif isinstance(new, NewJob):
                room = await api.admission.admit_jobs(new.tenant, 1)
            else:
                room = await api.admission.admit_runs(new.tenant, 1)
            if not room.count and not await self._find_existing([new]):
                batch.delay(index, new, room)
            elif isinstance(new, NewJob):
                [put] = await api.jobs.put_jobs([new])
                answer_put(put, 201, [])
            else:
                await self._submit_one(new)
        except StoreUnavailable:
            raise
        except Exception as error:
            batch.refuse(index, new, error)

    async def _build_request(self, request: JobRequest) -> NewRun | NewJob | JobChange:
        if request.record is None:
            written: dict[str, str] = {}
            fields: JobIn = decode(request.body, JobIn, _decoder, written)
            try:
                return await self._build_job(request, fields)
            except Invalid as error:
                raise restore_names(error, written) from None
        mapping = self._mappings[request.topic]
        action = read_action(mapping, request.record)
        if action == "create":
            return await self._build_job(request, build_job(mapping, request.record))
        principal = self._principal(self._tenant if self._tenant is not None else request.tenant)
        job = mapping.render_text("job", mapping.job, request.record)
        if not job:
            raise RequestFieldError(mapping.setting("job"), f"is empty; the action is {action}")
        return JobChange(
            tenant=principal.choose_tenant(read_tenant(mapping, request.record)) or DEFAULT_TENANT,
            job=job,
            patch=None if action == "cancel" else build_patch(mapping, request.record),
        )

    async def _build_job(self, request: JobRequest, fields: JobIn) -> NewRun | NewJob:
        api = self._api
        principal = self._principal(self._tenant if self._tenant is not None else request.tenant)
        tenant = principal.choose_tenant(None if fields.tenant is msgspec.UNSET else fields.tenant) or DEFAULT_TENANT
        author = principal.name if request.author is None else request.author
        key = request.key if fields.idempotency_key is msgspec.UNSET else check_key(fields.idempotency_key, None)
        if is_recurring(fields):
            job = await make_job(api, fields, tenant, author, key)
            job.check()
            await api.admission.check(principal, tenant, job.spec.queue, job.spec.task, job.payload)
            await api.admission.check_calendars(tenant, job.spec.calendars)
            return job
        run = self._apply_announced_id(await make_run(api, fields, tenant, author, key), request.run)
        # The request may have been in the log for long: compare with the time when it was sent.
        past = explain_past_time(run, request.sent_at)
        if past is not None:
            raise past
        run = msgspec.structs.replace(run, after=read_dependencies(fields))
        if request.trace:
            run = msgspec.structs.replace(run, policy=traced(run.policy, request.trace))
        run.check()
        parents = () if run.after is None else run.after.parents
        await api.admission.check(principal, tenant, run.queue, run.task, run.payload, parents)
        return run

    def _apply_announced_id(self, run: NewRun, announced: str | None) -> NewRun:
        """Set the run id that the sender announced. Its shard must be valid, and be that of the ordering key."""
        if announced is None:
            return run
        check_id("job", announced)
        shard = decode_shard(announced)
        if shard >= self._api.store.shards or (run.policy.ordering_key and shard != decode_shard(run.id)):
            raise Invalid("job", f"{announced} is not a valid id for this job", "omit the header")
        return msgspec.structs.replace(run, id=self._api.jobs.placed(RunId(announced), run.tenant, run.placement))

    async def _select_admitted(self, batch: "_Batch") -> list[tuple[int, NewRun]]:
        """Return the runs within the quotas, asked once per tenant, and the runs that were made before."""
        counts = Counter(run.tenant for _, run in batch.runs if not batch.is_waiting(run))
        room = {tenant: await self._api.admission.admit_runs(tenant, count) for tenant, count in counts.items()}
        left = Counter({tenant: admitted.count for tenant, admitted in room.items()})
        admitted_runs, over_quota = list[tuple[int, NewRun]](), list[tuple[int, NewRun]]()
        for index, run in batch.runs:
            left[run.tenant] -= 1
            (over_quota if left[run.tenant] < 0 else admitted_runs).append((index, run))
        made = await self._find_existing(run for _, run in over_quota)
        for index, run in over_quota:
            if run.idempotency is not None and (run.tenant, run.idempotency.key) in made:
                admitted_runs.append((index, run))
            else:
                batch.delay(index, run, room.get(run.tenant, _NO_QUOTA))
        return admitted_runs

    async def _find_existing(self, requests: Iterable[NewRun | NewJob]) -> set[tuple[str, str]]:
        """Return the tenants and keys of requests whose jobs already exist."""
        keys: dict[str, list[str]] = {}
        for new in requests:
            if new.idempotency is not None:
                keys.setdefault(new.tenant, []).append(new.idempotency.key)
        return {
            (tenant, key) for tenant, known in keys.items() for key in await self._api.store.used_keys(tenant, known)
        }

    async def _submit(self, batch: "_Batch") -> None:
        """Submit the collected runs."""
        if not batch.runs:
            return
        runs = await self._select_admitted(batch)
        batch.runs.clear()
        try:
            accepted = await self._api.jobs.submit_many([run for _, run in runs])
        except StoreUnavailable:
            raise
        except Exception:
            # Submit one by one, so that the run that caused the error does not fail the others.
            for index, run in runs:
                try:
                    await self._submit_one(run)
                except StoreUnavailable:
                    raise
                except Exception as error:
                    batch.refuse(index, run, error)
            return
        for (index, run), answer in zip(runs, accepted, strict=True):
            if answer.conflict:
                batch.refuse(index, run, build_conflict(run, answer))

    async def _submit_one(self, run: NewRun) -> None:
        try:
            accepted = await self._api.jobs.submit(run)
        except NotFound as error:
            raise Invalid("dependsOn", str(error)) from None
        if accepted.conflict:
            raise build_conflict(run, accepted)

    def _principal(self, tenant: str | None) -> Principal:
        found = self._principals.get(tenant)
        if found is None:
            if tenant is not None:
                check_tenant("tenant", tenant)
            found = Principal(name=_AUTHOR, role=Role.SUBMITTER, tenant=tenant)
            if len(self._principals) < 1_000:
                self._principals[tenant] = found
        return found


class _Batch:
    """Requests in progress: the answers so far, the quotas with waiting requests, and the collected plain runs."""

    def __init__(self, answers: list[Rejection | None], waiting: dict[str, Rejection]) -> None:
        self.runs: list[tuple[int, NewRun]] = []
        self._answers = answers
        self._held = waiting

    def is_waiting(self, new: NewRun | NewJob) -> bool:
        """Whether an earlier request of the same quota waits."""
        return _choose_quota(new) in self._held

    def wait(self, index: int, change: JobChange) -> bool:
        """Whether a change has to wait for earlier requests of its tenant, since it may refer to one of their jobs."""
        quota = next((quota for quota in _list_quotas(change.tenant) if quota in self._held), None)
        if quota is not None:
            self._answers[index] = self._held[quota]
        return quota is not None

    def delay(self, index: int, new: NewRun | NewJob, room: Allowance) -> None:
        """Let a request wait, because earlier ones wait or because the quota has no room."""
        quota = _choose_quota(new)
        if quota not in self._held:
            assert room.reason is not None
            self._held[quota] = _build_refusal(room.reason, quota)
        self._answers[index] = self._held[quota]

    def refuse(self, index: int, new: NewRun | NewJob | JobChange, error: Exception) -> None:
        refusal = self._answers[index] = _build_refusal(error, _choose_quota(new))
        if refusal.later:
            self._held.setdefault(refusal.lane, refusal)


def _choose_quota(new: NewRun | NewJob | JobChange) -> str:
    """Return the quota that a request counts against. Recurring jobs have their own, which may be full for long."""
    of_runs, of_jobs = _list_quotas(new.tenant)
    return of_jobs if isinstance(new, NewJob) else of_runs


def _list_quotas(tenant: str) -> tuple[str, str]:
    return f"runs of {tenant}", f"jobs of {tenant}"


def _build_refusal(error: Exception, quota: str = "") -> Rejection:
    problem: Problem = build_problem(error)[0]
    return Rejection(
        title=problem.title,
        detail=problem.detail,
        field=problem.field,
        hint=problem.hint,
        later=problem.status in _TEMPORARY,
        lane=quota,
    )


_decoder: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder(JobIn)
