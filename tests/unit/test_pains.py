"""What is new of what hurts a store, and when others should hold back."""

import msgspec
import pytest

from mainspring.adapters.store.postgres.health import latency, plan, pooler, room
from mainspring.domain.diagnosis import Finding, Level, blamed, found, warned
from mainspring.domain.instant import MILLISECOND
from mainspring.domain.pains import changed, is_pressed, worst_of


def test_the_worst_of_a_check_counts() -> None:
    findings = [found("vacuum", "few"), blamed("vacuum", "many", "wait"), warned("vacuum", "some", "wait")]
    assert worst_of(findings) == {"vacuum": findings[1]}


def test_what_is_as_it_was_is_not_told_again() -> None:
    before = worst_of([warned("transactions", "one is 5m old", "end it"), found("latency", "1 ms")])
    now = worst_of([warned("transactions", "one is 6m old", "end it"), found("latency", "2 ms")])
    assert changed(before, now) == []


def test_another_one_that_is_as_bad_is_told_and_another_one_that_is_well_is_not() -> None:
    one, other = (Finding(check="transactions", level=Level.WARNING, says="old", who=who) for who in ("1", "2"))
    assert changed({"transactions": one}, {"transactions": other}) == [other]
    well, better = (msgspec.structs.replace(finding, level=Level.OK) for finding in (one, other))
    assert changed({"transactions": well}, {"transactions": better}) == []


@pytest.mark.parametrize("before", [{}, worst_of([found("transactions", "none")])])
def test_what_became_worse_is_told_and_what_became_better(before: dict[str, Finding]) -> None:
    now = worst_of([warned("transactions", "one is 5m old", "end it")])
    assert [finding.level for finding in changed(before, now)] == [Level.WARNING]
    assert [finding.level for finding in changed(now, worst_of([found("transactions", "none")]))] == [Level.OK]


def test_what_is_well_from_the_start_is_not_told() -> None:
    assert changed({}, worst_of([found("vacuum", "few")])) == []


def test_background_work_waits_for_what_the_server_suffers_from() -> None:
    assert is_pressed([found("latency", "1 ms"), warned("transactions", "one is 5m old", "end it")])
    assert not is_pressed([warned("replica", "it is behind", "see"), found("transactions", "none")])


def test_what_stays_as_it_is_on_an_ordinary_installation_holds_nothing_back() -> None:
    far_away = [latency(40 * MILLISECOND), pooler(by_transaction=True, keeps_settings=False)]
    assert all(finding.level is Level.WARNING for finding in far_away)
    assert not is_pressed(far_away)


def test_connections_that_processes_may_open_hold_nothing_back_and_those_that_are_open_do() -> None:
    seven_processes = plan(7, 13, 97)
    assert seven_processes.level is Level.WARNING
    assert not is_pressed([seven_processes, room(30, 97)])
    assert is_pressed([plan(1, 13, 97), room(80, 97)])
