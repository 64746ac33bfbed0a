"""What is new of what hurts a store, and when others should hold back."""

import pytest

from mainspring.domain.diagnosis import Finding, Level, blamed, found, warned
from mainspring.domain.pains import changed, is_pressed, worst_of


def test_the_worst_of_a_check_counts() -> None:
    findings = [found("vacuum", "few"), blamed("vacuum", "many", "wait"), warned("vacuum", "some", "wait")]
    assert worst_of(findings) == {"vacuum": findings[1]}


def test_what_is_as_it_was_is_not_told_again() -> None:
    before = worst_of([warned("transactions", "one is 5m old", "end it"), found("latency", "1 ms")])
    now = worst_of([warned("transactions", "one is 6m old", "end it"), found("latency", "2 ms")])
    assert changed(before, now) == []


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
