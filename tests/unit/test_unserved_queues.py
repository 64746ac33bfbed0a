"""The doctor on queued runs that no worker can take, and on queues that are paused on purpose."""

import pytest

from mainspring.core.model.base.instant import Instant
from mainspring.core.model.cluster.diagnosis import Finding, Level, Queued, Signs, WorkerSigns, diagnose


def check(
    *,
    pauses: tuple[tuple[str, str], ...] = (),
    workers: tuple[WorkerSigns, ...] = (WorkerSigns(name="w", queues=("mail",), tasks=("send",)),),
    queued: tuple[Queued, ...] = (
        Queued(queue="reports", task="report", runs=40),
        Queued(queue="mail", task="send", runs=1),
    ),
) -> dict[str, Finding]:
    signs = Signs(
        now=Instant(0),
        schedulers=1,
        workers=workers,
        queued=queued,
        expired=(),
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


IN_EU = ("datacenter=eu", "gpu=a100")


@pytest.mark.parametrize(
    ("requires", "is_found"),
    [
        ((), False),
        (IN_EU, False),
        (("datacenter=us>eu>30s", "gpu=a100"), False),
        (("datacenter=mars",), True),
        (("datacenter=eu", "gpu=h100"), True),
        (("datacenter=us>asia>30s",), True),
        (("datacenter=us>eu>30s", "gpu=h100"), True),
    ],
)
def test_runs_that_require_labels_need_a_worker_that_has_them(requires: tuple[str, ...], is_found: bool) -> None:
    able = WorkerSigns(name="w", queues=("mail",), tasks=("send",), labels=IN_EU, datacenter="eu")
    leaving = WorkerSigns(name="v", queues=("mail",), labels=("datacenter=mars",), datacenter="mars", draining=True)
    other = WorkerSigns(name="u", queues=("reports",), labels=("gpu=h100",), datacenter="asia")
    waiting = Queued(queue="mail", task="send", runs=1_200, requires=requires)
    findings = check(workers=(able, leaving, other), queued=(waiting,))
    assert ("labels" in findings) == is_found
    if is_found:
        assert findings["labels"].level is Level.PROBLEM
        assert findings["labels"].says.startswith("1,200 runs wait for labels that no live worker")
        assert findings["labels"].says.endswith(" with ".join(requires))


def test_labels_are_not_reported_for_an_unknown_task_or_a_queue_without_workers() -> None:
    queued = (
        Queued(queue="mail", task="other", runs=1, requires=IN_EU),
        Queued(queue="reports", task="send", runs=1, requires=IN_EU),
    )
    findings = check(queued=queued)
    assert "labels" not in findings
    assert (findings["queues"].level, findings["tasks"].level) == (Level.PROBLEM, Level.PROBLEM)
