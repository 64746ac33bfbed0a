"""What the audit keeps of a change: only what differs, as JSON. The same for every store."""

from collections.abc import Collection, Mapping

import msgspec

from mainspring.domain.job import Job
from mainspring.domain.run import MAX_TAGS, RunView

_encode = msgspec.json.Encoder(order="sorted").encode


def what_differs(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[bytes, bytes] | None:
    """Both sides of what is not the same; none if everything is. What one side lacks is null there."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if not names:
        return None
    return _encode({name: before.get(name) for name in names}), _encode({name: after.get(name) for name in names})


def words_of_job(job: Job) -> dict[str, object]:
    """A job as the audit compares it. Payloads are kept by its versions."""
    spec: dict[str, object] = msgspec.to_builtins(job.spec)
    return {"version": job.version, "state": job.state.value, **spec}


def words_of_run(run: RunView) -> dict[str, object]:
    """What can be edited of a run. It has no versions, so its payload is here, as text."""
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
    """Some taken away, then some added at the end; none if that changes nothing, or would be too many."""
    changed = tuple(dict.fromkeys([*(tag for tag in tags if tag not in remove or tag in add), *add]))
    return None if changed == tags or len(changed) > MAX_TAGS else changed
