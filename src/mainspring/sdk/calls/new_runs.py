"""Builds the runs of calls."""

from collections.abc import Sequence
from typing import Any

import msgspec

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.runs.new_run import NewRun, made_once
from mainspring.core.model.runs.reserved import FAN_OUT
from mainspring.core.model.runs.unique import Unique as UniqueKey
from mainspring.sdk.calls.options import PreparedCall
from mainspring.sdk.dependencies import build_dependencies
from mainspring.sdk.fan_out import check_each


def build_runs(ids: Sequence[RunId], calls: "Sequence[PreparedCall[Any]]", tenant: str) -> list[NewRun]:
    """Build the runs of one batch, with the dependencies between them."""
    runs = [build_run(run_id, call, tenant) for run_id, call in zip(ids, calls, strict=True)]
    for call in calls:
        if call.task == FAN_OUT and not call.options.depends_on:
            check_each(call.payload)
    if not any(call.options.depends_on for call in calls):
        return runs
    here = {id(call): run_id for run_id, call in zip(ids, calls, strict=True)}
    # Added after the idempotency keys are computed, because ids of the same batch differ in every try.
    return [
        msgspec.structs.replace(run, after=build_dependencies(call.options.depends_on, call.options.when, here))
        for run, call in zip(runs, calls, strict=True)
    ]


def collect_given_options(runs: Sequence[NewRun], calls: "Sequence[PreparedCall[Any]]") -> dict[RunId, frozenset[str]]:
    """Return the options that callers set, for runs whose tasks are declared elsewhere."""
    return {run.id: call.options.given for run, call in zip(runs, calls, strict=True) if call.options.given is not None}


def build_run(run_id: RunId, call: PreparedCall[Any], tenant: str) -> NewRun:
    """Build the run of a call. Relative times are resolved by the store's clock, not by this machine's."""
    options = call.options
    run = NewRun(
        id=run_id,
        task=call.task,
        payload=call.payload,
        queue=options.queue,
        tenant=options.tenant or tenant,
        priority=options.priority,
        policy=options.policy,
        at=options.at,
        delay=options.delay,
        start_within=options.start_within,
        deadline=options.deadline,
        about=options.about,
        placement=options.placement,
    )
    if isinstance(options.unique, UniqueKey):
        run = msgspec.structs.replace(run, unique=options.unique)
    return made_once(run, options.unique) if isinstance(options.unique, str) else run
