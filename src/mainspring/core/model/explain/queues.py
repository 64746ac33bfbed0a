"""Why the policy of its queue keeps a run from starting, as reasons."""

from collections.abc import Sequence

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.explain.limits import NAMED
from mainspring.core.model.explain.reason import Holder, Reason
from mainspring.core.model.limits.queues import QueuePolicy
from mainspring.core.model.runs.view import RunView


def reason_of_full_queue(run: RunView, policy: QueuePolicy, running: int, known: Sequence[RunId]) -> Reason | None:
    """Return the reason for a queued run whose queue is at its concurrency limit; None: it is not.

    ``running`` need not be counted beyond the limit. ``known``: some of the running runs, only those that the caller
    may see.
    """
    most = policy.concurrency
    if most is None or running < most:
        return None
    named = known[:NAMED]
    others = " …" if len(named) < most else ""
    held = f", held by {', '.join(named)}{others}" if named else ", held by runs of other tenants"
    return Reason(
        code="queue-full",
        words=f"queue {run.queue!r} runs {most} at a time{held}",
        hint="wait for one to end, or let more run, as an administrator of all tenants: "
        f"mainspring queues update {run.queue} --concurrency {most + 1}",
        holders=tuple(Holder("run", holder) for holder in named),
    )


def words_of_turns(run: RunView, policy: QueuePolicy) -> str:
    """Describe why the rank alone does not determine the next run of a fair queue."""
    share = policy.shares.get(run.tenant, 1)
    turns = "one turn" if share == 1 else f"{share} turns"
    return f"tenants take turns in queue {run.queue!r}, and {run.tenant!r} has {turns} where others have one"
