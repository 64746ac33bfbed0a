"""The doctor on queued runs that no worker can take, and on queues that are paused on purpose."""

import pytest

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.cluster.diagnosis import Finding, Level, Queued, Signs, WorkerSigns, diagnose


def check(*, pauses: tuple[tuple[str, str], ...] = ()) -> dict[str, Finding]:
    signs = Signs(
        now=Instant(0),
        schedulers=1,
        workers=(WorkerSigns(name="w", queues=("mail",), tasks=("send",)),),
        queued=(Queued(queue="reports", task="report", runs=40), Queued(queue="mail", task="send", runs=1)),
        unburied=(),
        unstaged=0,
        oldest_unstaged=None,
        unfired=0,
        oldest_unfired=None,
        waiting=False,
        readers=(),
        dead_letters=0,
        pauses=pauses,
    )
    return {finding.check: finding for finding in diagnose(signs)}


def test_tasks_of_a_queue_without_workers_are_not_reported_as_known() -> None:
    findings = check()
    assert findings["queues"].level is Level.PROBLEM
    assert "40 runs" in findings["queues"].says
    assert findings["tasks"].says != "every queued task is known to a worker"


@pytest.mark.parametrize("pause", [("", "reports"), ("", "")])
def test_a_paused_queue_needs_no_worker(pause: tuple[str, str]) -> None:
    findings = check(pauses=(pause,))
    assert findings["queues"].level is Level.OK
    assert not any("start a worker" in finding.advice for finding in findings.values())
    assert findings["pauses"].level is Level.WARNING


def test_a_queue_that_is_paused_for_one_tenant_needs_a_worker() -> None:
    assert check(pauses=(("acme", "reports"),))["queues"].level is Level.PROBLEM
