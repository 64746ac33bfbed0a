"""Numbers of key locks: which runs execute one at a time."""

from mainspring.core.model.base.ids import JobId, stable_hash
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.schedules.job import JobSpec, Overlap, compute_overlap_lock


def compute_run_key_lock(tenant: str, policy: RunPolicy) -> int | None:
    """Return the key lock of a one-off run; None without an ordering key."""
    return stable_hash(f"order:{tenant}:{policy.ordering_key}") if policy.ordering_key else None


def compute_tick_key_lock(job: JobId, tenant: str, spec: JobSpec, target: str = "") -> int | None:
    """Return the key lock of a tick's run: its ordering key's, or its job's if runs of the job wait for each other."""
    if spec.policy.ordering_key:
        return compute_run_key_lock(tenant, spec.policy)
    return compute_overlap_lock(job, target) if spec.overlap in (Overlap.QUEUE, Overlap.CANCEL) else None
