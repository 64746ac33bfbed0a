"""The findings that the overview page shows."""

from typing import Any

from mainspring.features.overview.findings import ClusterView, find_late_runs, list_findings
from mainspring.http.schemas.datacenters import DatacenterOut
from mainspring.http.schemas.dead_letters import GroupOut
from mainspring.http.schemas.job_answers import SloOut
from mainspring.http.schemas.queues import QueueOut
from mainspring.http.schemas.runs import RunOut
from mainspring.http.schemas.stats import MissedSlo, Point
from mainspring.http.schemas.usage import BudgetOut
from mainspring.http.schemas.workers import SchedulerOut, Schedulers, WorkerOut, Workers
from mainspring.web.formatting import instant

NOW = "2026-11-15T12:00:00Z"
FINE = QueueOut(name="mail", queued=0, running=0, workers=1, lag_ms=0, rate_per_s=0, paused=False)


def worker(offset: float = 0) -> WorkerOut:
    return WorkerOut(
        worker_id="1",
        name="w",
        version="1",
        started_at=NOW,
        lease_until=NOW,
        last_heartbeat_at=NOW,
        running=0,
        draining=False,
        queues=("mail",),
        tasks=(),
        clock_offset_ms=offset,
    )


def schedulers(lag_ms: float = 0) -> Schedulers:
    one = SchedulerOut(
        scheduler_id="2", name="s", version="1", started_at=NOW, lease_until=NOW, last_heartbeat_at=NOW, shards=4
    )
    return Schedulers(items=[one], lag_ms=lag_ms)


def build_view(**fields: Any) -> ClusterView:
    return ClusterView(
        **{"workers": Workers(items=[worker()]), "schedulers": schedulers(), "now": instant(NOW), **fields}
    )


def list_words(*queues: QueueOut, **fields: Any) -> list[tuple[str, bool]]:
    return [(finding.words, finding.urgent) for finding in list_findings(build_view(queues=queues, **fields))]


def queue(**fields: Any) -> QueueOut:
    base = {"name": "mail", "queued": 3, "running": 0, "workers": 1, "lag_ms": 0, "rate_per_s": 0, "paused": False}
    return QueueOut(**{**base, **fields})


def test_a_healthy_system_has_no_findings() -> None:
    assert list_words(FINE) == []


def test_findings_are_listed_with_the_worst_first() -> None:
    assert list_words(FINE, workers=Workers(items=[])) == [("no live worker: no runs start", True)]
    assert list_words(FINE, schedulers=Schedulers(items=[], lag_ms=0)) == [
        ("no live scheduler: no runs become due", True)
    ]
    assert list_words(FINE, schedulers=schedulers(65_000)) == [("schedulers are 1m 05s behind", True)]
    assert list_words(queue(paused=True), queue(name="a b", workers=0, queued=1)) == [
        ("queue a b has no workers: 1 run waits", True),
        ("queue mail is paused: 3 runs wait", False),
    ]
    # A queue that was paused on purpose is no failure, also without a worker.
    assert list_words(queue(paused=True, workers=0)) == [("queue mail is paused: 3 runs wait", False)]
    assert list_words(queue(lag_ms=90_000)) == [("queue mail is 1m 30s late: 3 runs wait", False)]
    assert list_words(FINE, workers=Workers(items=[worker(-5_000)])) == [
        ("the clocks of 1 process are off by more than a second", False)
    ]


def test_the_link_of_a_finding_is_url_encoded() -> None:
    [finding] = list_findings(build_view(queues=[queue(name="a b&c", paused=True)]))
    assert finding.path == "runs?status=queued&queue=a%20b%26c"


def point(time: str, succeeded: int, failed: int) -> Point:
    other: dict[str, Any] = {"cancelled": 0, "skipped": 0, "retried": 0, "late_ms_mean": 0.0, "late_ms_max": 0.0}
    return Point(time=time, succeeded=succeeded, failed=failed, took_ms_mean=0.0, took_ms_max=0.0, **other)


def test_a_high_share_of_failures_in_the_last_hour_is_a_finding() -> None:
    words = "30% of the runs of the last hour failed: 6 of 20"
    assert list_words(points=[point("2026-11-15T11:30:00Z", 14, 6)]) == [(words, True)]
    assert list_words(points=[point("2026-11-15T11:30:00Z", 16, 4)]) == []
    # Few runs are no evidence, and older failures no longer count.
    assert list_words(points=[point("2026-11-15T11:30:00Z", 0, 19)]) == []
    assert list_words(points=[point("2026-11-15T10:45:00Z", 0, 100), point("2026-11-15T11:30:00Z", 20, 0)]) == []


def group(*trend: int) -> GroupOut:
    return GroupOut(
        fingerprint="f",
        task="t",
        reason="gave up",
        count=sum(trend),
        first_seen=NOW,
        last_seen=NOW,
        sample_run_id="1",
        error_message="",
        trend=trend,
    )


def test_dead_letters_of_the_last_hour_are_counted() -> None:
    assert list_words(groups=[group(7, 2), group(5, 0), group(0, 1)]) == [("3 dead letters in the last hour", False)]
    assert list_words(groups=[group(7, 0)]) == []
    words = "at least 1 dead letter in the last hour"
    assert list_words(groups=[group(0, 1)], more_groups=True) == [(words, False)]


def budget(state: Any, *, held: bool = False) -> BudgetOut:
    return BudgetOut(
        name="gpu",
        budget_id="1",
        tenant="a/b",
        unit="wall",
        limit=1,
        period="day",
        of="tenant",
        warn_at=0.8,
        then="pause",
        state=state,
        spent=2,
        held=held,
    )


def test_budgets_that_are_spent_are_named() -> None:
    assert list_words(budgets=[budget("ok"), budget("warned")]) == []
    assert list_words(budgets=[budget("over")]) == [("budget gpu of tenant a/b is used up", False)]
    assert list_words(budgets=[budget("over", held=True)]) == [
        ("budget gpu of tenant a/b is used up, and its tenant is paused", True)
    ]
    [finding] = list_findings(build_view(budgets=[budget("over")]))
    assert finding.path == "tenants/a%2Fb"


def a_datacenter(name: str, workers: int, queued: int = 0) -> DatacenterOut:
    return DatacenterOut(
        name=name,
        health="ok" if workers else "no-workers",
        workers=workers,
        draining=0,
        schedulers=1,
        queued=queued,
        running=0,
        lag_ms=0,
    )


def test_data_centers_without_workers_are_named() -> None:
    assert list_words(datacenters=[a_datacenter("paris", 2), a_datacenter("oslo", 0)]) == [
        ("data center oslo has no workers", False)
    ]
    absent = [a_datacenter("oslo", 0, queued=2)]
    assert list_words(queue(stranded={"oslo": 1}), queue(stranded={"oslo": 1}), datacenters=absent) == [
        ("2 runs wait for data center oslo (no workers)", True)
    ]
    # Another queue has workers there.
    assert list_words(queue(stranded={"paris": 1}), datacenters=[a_datacenter("paris", 2)]) == [
        ("1 run of queue mail waits for data center paris (no workers of this queue)", True)
    ]
    # The finding for all workers covers it.
    assert list_words(workers=Workers(items=[]), datacenters=[a_datacenter("oslo", 0)]) == [
        ("no live worker: no runs start", True)
    ]


def run(due: str, **fields: Any) -> RunOut:
    base = {"job_id": "1", "task": "t", "tenant": "default", "queue": "mail", "priority": 5, "max_retries": 3}
    times = {"scheduled_for": due, "created_at": due, "modified_time": due, "attempt_number": 0, "log_url": ""}
    return RunOut(**{"run_id": "r", "status": "queued", **base, **times, **fields})


def test_late_runs_of_the_table_are_also_a_finding() -> None:
    waits = run("2026-11-15T11:59:00Z")
    began = run("2026-11-15T11:00:00Z", run_id="s", status="succeeded", start_time="2026-11-15T11:01:30Z")
    in_time = run("2026-11-15T11:59:55Z", run_id="q")
    late = find_late_runs([waits, began, in_time], instant(NOW))
    assert [(one.run_id, seconds) for one, seconds in late] == [("s", 90.0), ("r", 60.0)]
    [finding] = list_findings(build_view(queues=[FINE], late=late))
    assert finding == ("runs are up to 1m 30s late", "runs/s", False)
    assert list_words(FINE, late=find_late_runs([in_time], instant(NOW))) == []
    # Runs for a data center without workers have a finding of their own.
    pinned = run("2026-11-15T11:00:00Z", datacenter="oslo")
    assert find_late_runs([pinned], instant(NOW), [queue(stranded={"oslo": 1})]) == []
    assert find_late_runs([pinned], instant(NOW), [queue(stranded={"paris": 1})]) != []


def test_missed_objectives_are_named() -> None:
    state = SloOut(missed=["success"], missed_since="2026-11-15T11:30:00Z")
    missed = [MissedSlo(job_id="7", name="nightly", tenant="default", slo_state=state)]
    assert list_findings(build_view(missed=missed)) == [("SLO of nightly missed for 30m 00s", "jobs/7", False)]
