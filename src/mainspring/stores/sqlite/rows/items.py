"""Builds the items of procedure batches: arrays, in the order of the columns that the procedure documents."""

from mainspring.core.model.cluster.datacenters import placed
from mainspring.core.model.runs.completion import Completion
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import DEFAULT_POLICY
from mainspring.core.model.schedules.job import Fire, Job, Tick, tick_run_id
from mainspring.stores.key_locks import compute_run_key_lock, compute_tick_key_lock
from mainspring.stores.sqlite.rows.encoding import (
    encode,
    encode_about,
    encode_bytes,
    encode_label_set,
    encode_limits,
    encode_policy,
)


def build_submit_item(run: NewRun, shard: int) -> tuple[object, ...]:
    policy = run.policy
    default = policy is DEFAULT_POLICY
    return (
        run.id,
        shard,
        run.tenant,
        run.queue,
        run.priority,
        run.task,
        None if default else encode_policy(policy),
        encode_bytes(run.payload),
        run.at,
        run.delay,
        run.start_within,
        run.deadline,
        None if default else compute_run_key_lock(run.tenant, policy),
        run.replay_of,
        policy.timeout,
    )


def needs_full_submit(run: NewRun) -> bool:
    """Report whether a run has fields that the basic submit does not take. Most runs have none."""
    policy = run.policy
    return bool(
        run.about
        or run.job
        or run.idempotency
        or run.author
        or run.replay_of
        or run.target
        or (policy is not DEFAULT_POLICY and (policy.requires or policy.limits or policy.breaker))
    )


def involves_other_runs(run: NewRun) -> bool:
    """Report whether submitting a run involves other runs: its parents, or the run that holds its unique key."""
    return run.after is not None or run.unique is not None


def build_full_submit_item(run: NewRun, shard: int) -> tuple[object, ...]:
    job, idempotency = run.job, run.idempotency
    return (
        *build_submit_item(run, shard),
        encode_about(run.about),
        None if job is None else job.id,
        None if job is None else job.version,
        None if job is None else job.scheduled_at,
        int(job is not None and job.kind == "backfill"),
        None if idempotency is None else idempotency.key,
        None if idempotency is None else idempotency.fingerprint.hex(),
        run.author,
        encode_label_set(run.policy.requires),
        run.target,
        encode_limits(run.tenant, run.task, run.policy),
        None if run.after is None else run.after.rule,
    )


def build_completion_item(completion: Completion) -> tuple[object, ...]:
    result = completion.result
    return (
        completion.run,
        completion.fence,
        completion.outcome,
        completion.state,
        completion.reason,
        completion.delay,
        None if result is None else encode_bytes(result),
        completion.error,
        completion.fingerprint or None,
    )


def build_cost_item(completion: Completion) -> tuple[object, ...]:
    """Encode a completion, with the cost of the attempt beyond its time."""
    spent = completion.spent
    cpu, units = (None, None) if spent is None else (spent.cpu, encode(spent.units) if spent.units else None)
    return (*build_completion_item(completion), cpu, units)


def build_fire_item(fire: Fire) -> tuple[object, ...]:
    job = fire.job
    spec = job.spec
    return (
        job.id,
        job.rev,
        fire.next_fire,
        int(fire.finished),
        spec.fixed_delay,
        spec.overlap,
        spec.queue,
        spec.priority,
        spec.policy.timeout,
        compute_tick_key_lock(job.id, job.tenant, spec),
        spec.start_within,
        spec.deadline,
        [
            (
                tick.scheduled_at,
                tick.decision,
                tick.reason,
                (tick.run_id or tick_run_id(job.id, tick.scheduled_at, tick.target))
                if tick.decision == "run"
                else None,
                tick.due,
                int(tick.late),
                tick.ticks,
                tick.last_at,
                tick.happens_at,
                *(_build_target_fields(job, tick) if tick.target else ()),
            )
            for tick in fire.ticks
        ],
        encode_label_set(spec.policy.requires),
        encode_limits(job.tenant, spec.task, spec.policy),
        fire.next_tick,
        int(bool(spec.datacenters)),
    )


def _build_target_fields(job: Job, tick: Tick) -> tuple[object, ...]:
    """Return the fields of a tick that differ between data centers."""
    policy = placed(job.spec.policy, tick.target)
    key_lock = compute_tick_key_lock(job.id, job.tenant, job.spec, tick.target)
    return tick.target, encode_label_set(policy.requires), key_lock, encode_policy(policy)
