"""Changes of health findings, and when background work pauses."""

import msgspec
import pytest

from mainspring.core.model.base.instant import MILLISECOND
from mainspring.core.model.cluster.diagnosis import Finding, Level, blamed, found, warned
from mainspring.core.model.cluster.store_health import changed, find_worst, is_pressed
from mainspring.stores.postgres.upkeep.findings import check_latency, check_pooler, check_pools, check_room


def test_the_worst_finding_of_a_check_counts() -> None:
    findings = [found("vacuum", "few"), blamed("vacuum", "many", "wait"), warned("vacuum", "some", "wait")]
    assert find_worst(findings) == {"vacuum": findings[1]}


def test_an_unchanged_finding_is_not_reported_again() -> None:
    before = find_worst([warned("transactions", "one is 5m old", "end it"), found("latency", "1 ms")])
    now = find_worst([warned("transactions", "one is 6m old", "end it"), found("latency", "2 ms")])
    assert changed(before, now) == []


def test_reports_a_new_culprit_at_the_same_level() -> None:
    one, other = (Finding(check="transactions", level=Level.WARNING, says="old", who=who) for who in ("1", "2"))
    assert changed({"transactions": one}, {"transactions": other}) == [other]
    well, better = (msgspec.structs.replace(finding, level=Level.OK) for finding in (one, other))
    assert changed({"transactions": well}, {"transactions": better}) == []


@pytest.mark.parametrize("before", [{}, find_worst([found("transactions", "none")])])
def test_findings_that_became_worse_or_better_are_reported(before: dict[str, Finding]) -> None:
    now = find_worst([warned("transactions", "one is 5m old", "end it")])
    assert [finding.level for finding in changed(before, now)] == [Level.WARNING]
    assert [finding.level for finding in changed(now, find_worst([found("transactions", "none")]))] == [Level.OK]


def test_an_initially_healthy_check_is_not_reported() -> None:
    assert changed({}, find_worst([found("vacuum", "few")])) == []


def test_background_work_pauses_while_the_server_is_under_pressure() -> None:
    assert is_pressed([found("latency", "1 ms"), warned("transactions", "one is 5m old", "end it")])
    assert not is_pressed([warned("replica", "it is behind", "see"), found("transactions", "none")])


def test_permanent_warnings_do_not_pause_background_work() -> None:
    far_away = [check_latency(40 * MILLISECOND), check_pooler(by_transaction=True, keeps_settings=False)]
    assert all(finding.level is Level.WARNING for finding in far_away)
    assert not is_pressed(far_away)


def test_open_connections_pause_background_work_and_possible_ones_do_not() -> None:
    seven_processes = check_pools(7, 13, 97)
    assert seven_processes.level is Level.WARNING
    assert not is_pressed([seven_processes, check_room(30, 97)])
    assert is_pressed([check_pools(1, 13, 97), check_room(80, 97)])
