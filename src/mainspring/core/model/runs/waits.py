"""A short text of what a blocked run waits for, from its row alone. ``explain`` says more but queries the store."""

from mainspring.core.model.limits.limits import describe_limiter
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.workflows.dependencies import DependencyRule


def describe_reason(run: RunView) -> str:
    """Return the reason of a run for users: its own, or what it waits for."""
    if run.state is not RunState.BLOCKED:
        return run.reason
    policy = run.policy
    if run.limiter is not None:
        return f"waits: {describe_limiter(run.limiter, run.tenant, run.task, policy.limits, policy.breaker)}"
    # The row does not contain which of these blocks it now: dependencies come first, then the key.
    waits = []
    if run.parents:
        count = "another run" if run.parents == 1 else f"{run.parents} other runs"
        waits.append(f"{count} ({(run.rule or DependencyRule.ALL_SUCCEEDED).value})")
    if policy.ordering_key:
        waits.append(f"ordering key {policy.ordering_key!r}")
    return f"waits for {', then '.join(waits)}" if waits else "waits for an earlier run of its job (overlap)"
