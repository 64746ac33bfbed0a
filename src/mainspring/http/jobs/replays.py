"""Replays runs within the quotas of their tenants."""

from collections import Counter

from mainspring.core.model.access.access import Principal
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.reserved import NOTIFICATION, WEBHOOK
from mainspring.core.model.runs.view import RunView
from mainspring.http.context import Api


async def build_replay(api: Api, principal: Principal, run: RunView, payload: bytes | None) -> NewRun:
    """Build the replay of a run, if the caller may submit it. Repeated requests create one run only."""
    again = api.build_replay(run, payload, principal.name, number=0)
    if again.task in (WEBHOOK, NOTIFICATION) and again.payload == run.payload:
        # A webhook or an alert may be sent again with the same content.
        api.admission.check_queue(principal, again.queue)
    else:
        await api.admission.check(principal, again.tenant, again.queue, again.task, again.payload, None)
    return again


async def limit_to_quotas(api: Api, runs: list[NewRun], *, insist: bool) -> list[NewRun]:
    """Return the runs that the quotas allow. With ``insist``, raise the reason if there are none."""
    admitted = {
        tenant: await api.admission.admit_runs(tenant, count)
        for tenant, count in Counter(run.tenant for run in runs).items()
    }
    if insist and not any(found.count for found in admitted.values()):
        for found in admitted.values():
            found.check()
    left = Counter({tenant: found.count for tenant, found in admitted.items()})
    allowed = []
    for run in runs:
        if left[run.tenant] > 0:
            left[run.tenant] -= 1
            allowed.append(run)
    return allowed
