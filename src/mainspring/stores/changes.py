"""What the audit stores of a change: only the differences, as JSON. All stores share this."""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from mainspring.core.model.access.access import ApiKey, Quotas
from mainspring.core.model.base.instant import Instant, isoformat
from mainspring.core.model.runs.names import MAX_TAGS
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.ports.storage.access import Author

_encode = msgspec.json.Encoder(order="sorted").encode


class Change(msgspec.Struct, frozen=True):
    """One change that the audit records."""

    #: Empty if it concerns no single tenant.
    tenant: str
    target: str
    before: bytes | None = None
    after: bytes | None = None


def sum_up(author: Author, changes: Iterable[Change]) -> list[tuple[str, Change, int]]:
    """Return one audit entry for each tenant: the tenant, its first change and how many there were.

    Only the entry of a single change has ``before`` and ``after``.
    """
    by_tenant: dict[str, list[Change]] = {}
    for change in changes:
        by_tenant.setdefault(change.tenant if author.tenant is None else author.tenant, []).append(change)
    return [
        (tenant, changed[0] if len(changed) == 1 else Change(tenant, changed[0].target), len(changed))
        for tenant, changed in by_tenant.items()
    ]


def what_differs(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[bytes, bytes] | None:
    """Return both sides of what differs, or None if nothing does. A name that one side lacks is null there."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if not names:
        return None
    old, new = ({name: side.get(name) for name in names} for side in (before, after))
    return _encode(_camel(old)), _encode(_camel(new))


def _camel(value: object) -> object:
    """Convert names to the API's camel case. User text occurs only in values, never in names."""
    if not isinstance(value, Mapping):
        return value
    return {_camel_name(name): _camel(inner) for name, inner in value.items()}


def _camel_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def job_moved(
    before: JobState, after: JobState, was: Instant | None, now: Instant | None
) -> tuple[bytes, bytes] | None:
    """Return the audit's before and after of a job's state and of its resume time."""
    words = [
        {"state": state.value, "resume_at": None if until is None else isoformat(until)}
        for state, until in ((before, was), (after, now))
    ]
    return what_differs(words[0], words[1])


def quotas_changed(before: Quotas | None, after: Quotas) -> tuple[bytes | None, bytes]:
    """Return the audit's before and after of a tenant's quotas; all quotas if the tenant is new."""
    words: dict[str, object] = msgspec.to_builtins(after)
    differs = None if before is None else what_differs(msgspec.to_builtins(before), words)
    return (None, _encode(_camel(words))) if differs is None else differs


def words_of_key(key: ApiKey) -> bytes:
    """Encode the permissions of a new key, without its secret or hash."""
    return _encode(
        {
            "name": key.name,
            "role": key.role.value,
            "tenant": key.tenant,
            "queues": key.queues,
            "expiresAt": None if key.expires_at is None else isoformat(key.expires_at),
        }
    )


def words_of_job(job: Job) -> dict[str, object]:
    """Return a job as the audit compares it. Payloads are left out: they are kept with the versions."""
    spec: dict[str, object] = msgspec.to_builtins(job.spec)
    return {"version": job.version, "state": job.state.value, **spec}


def words_of_run(run: RunView) -> dict[str, object]:
    """Return the editable fields of a run. A run has no versions, so its payload is included, as text."""
    return {
        "task": run.task,
        "queue": run.queue,
        "priority": run.priority,
        "due": run.due,
        "start_by": run.start_by,
        "deadline": run.deadline,
        "policy": msgspec.to_builtins(run.policy),
        "about": msgspec.to_builtins(run.about),
        "payload": None if run.payload is None else run.payload.decode("utf-8", "replace"),
    }


def retagged(tags: tuple[str, ...], add: Collection[str], remove: Collection[str]) -> tuple[str, ...] | None:
    """Remove tags, then append others; None if that changes nothing or exceeds the maximum."""
    changed = tuple(dict.fromkeys([*(tag for tag in tags if tag not in remove or tag in add), *add]))
    return None if changed == tags or len(changed) > MAX_TAGS else changed
