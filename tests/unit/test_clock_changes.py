"""DST changes that affect a cron expression, and what the gap and fold rules do with them."""

from zoneinfo import ZoneInfo

import pytest

from mainspring.core.model.base.instant import DAY, Instant, isoformat, parse_instant
from mainspring.core.model.schedules.cron import Cron, DstFold, DstGap, clock_changes

START = parse_instant("2026-01-01T00:00:00Z")
YEAR = 366 * DAY
ZONES = ("Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Asia/Beirut", "America/Sao_Paulo", "UTC")
EXPRESSIONS = ("30 2 * * *", "0 0 * * *", "15 1,2,3 * * *", "H H * * *", "0-59 0-23 * * *", "*/30 * * * *", "* 2 * * *")


def fires(cron: Cron, zone: ZoneInfo, gap: DstGap, fold: DstFold) -> set[Instant]:
    found = set()
    tick = cron.next_after(START, zone, gap, fold)
    while tick is not None and tick <= START + YEAR:
        found.add(tick)
        tick = cron.next_after(tick, zone, gap, fold)
    return found


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize("expression", [*EXPRESSIONS[:4], *EXPRESSIONS[5:]])
def test_reported_clock_changes_match_the_fires_that_the_rules_change(expression: str, name: str) -> None:
    cron, zone = Cron.parse(expression), ZoneInfo(name)
    after, skip, once, twice = DstGap.RUN_AFTER, DstGap.SKIP, DstFold.ONCE, DstFold.TWICE
    changes = clock_changes(cron, zone, after, once, START, START + YEAR)
    gaps = [change for change in changes if change.kind == "gap"]
    folds = [change for change in changes if change.kind == "fold"]
    ran_after, skipped = fires(cron, zone, after, once), fires(cron, zone, skip, once)
    repeated = fires(cron, zone, skip, twice)
    if not cron.fixed_times:
        assert ran_after == skipped == repeated
        assert {change.rule for change in changes} <= {"elapsed"}
        return
    assert ran_after - skipped == {change.at for change in gaps} - skipped
    assert all(change.at in ran_after for change in gaps)
    assert len(repeated) - len(skipped) == sum(change.count for change in folds)


def describe_changes(expression: str, gap: DstGap = DstGap.RUN_AFTER, fold: DstFold = DstFold.ONCE) -> list[str]:
    changes = clock_changes(Cron.parse(expression), ZoneInfo("Europe/Paris"), gap, fold, START, START + YEAR)
    return [f"{isoformat(change.at)} {change.words}" for change in changes]


def test_clock_changes_are_described_in_words() -> None:
    assert describe_changes("30 2 * * *") == [
        "2026-03-29T01:00:00Z clocks jump from 02:00 to 03:00; 02:30 does not exist: runs once, at 03:00",
        "2026-10-25T01:00:00Z clocks go back from 03:00 to 02:00; 02:30 comes twice: runs the first time only",
    ]
    assert [line.rpartition(": ")[2] for line in describe_changes("30 2 * * *", DstGap.SKIP, DstFold.TWICE)] == [
        "does not run",
        "runs both times",
    ]
    assert describe_changes("0 12 * * *") == []
    assert describe_changes("30 2 * 7 *") == []


def test_a_description_names_the_first_times_and_counts_the_rest() -> None:
    [gap, fold] = describe_changes("*/5 2 * * *")
    assert "02:00, 02:05, 02:10, 02:15, 02:20 and 7 more do not exist: does not run then, as it goes by" in gap
    assert "come twice: runs both times, as it goes by elapsed time" in fold


def test_a_description_names_up_to_five_times() -> None:
    [gap, fold] = describe_changes("0,12,24,36,48 2 * * *")
    assert "; 02:00, 02:12, 02:24, 02:36, 02:48 do not exist: runs once, at 03:00" in gap
    assert "; 02:00, 02:12, 02:24, 02:36, 02:48 come twice: runs the first time only" in fold
    [gap, fold] = describe_changes("0,30 2 * * *")
    assert "; 02:00, 02:30 do not exist" in gap
    assert "; 02:00, 02:30 come twice" in fold
    [gap, fold] = describe_changes("0,1 2 * * *")
    assert "; 02:00, 02:01 do not exist" in gap
    assert "; 02:00, 02:01 come twice" in fold


def test_a_description_names_seconds_once_for_each_minute() -> None:
    [gap, _] = describe_changes("1,59 0,59 2 * * *")
    assert "; 02:00:01, 02:59:01 do not exist" in gap
    [gap, _] = describe_changes("59 59 2 * * *")
    assert "; 02:59:59 does not exist" in gap


def test_a_change_across_midnight_names_the_day_of_each_time() -> None:
    start = parse_instant("2010-11-01T00:00:00Z")
    rules = (DstGap.SKIP, DstFold.ONCE, start, start + 10 * DAY)
    [fold] = clock_changes(Cron.parse("0,30 0,23 * * *"), ZoneInfo("America/St_Johns"), *rules)
    assert (fold.shown_before, fold.shown_after) == ("00:01", "23:01")
    assert (fold.day, fold.times) == ("2010-11-06", ("2010-11-06 23:30", "2010-11-07 00:00"))


def test_a_change_that_touches_midnight_names_times_alone() -> None:
    start = parse_instant("2026-10-20T00:00:00Z")
    rules = (DstGap.SKIP, DstFold.ONCE, start, start + 10 * DAY)
    [fold] = clock_changes(Cron.parse("59 23 * * *"), ZoneInfo("Asia/Beirut"), *rules)
    assert (fold.kind, fold.day, fold.times) == ("fold", "2026-10-24", ("23:59",))
    start = parse_instant("2011-12-01T00:00:00Z")
    rules = (DstGap.SKIP, DstFold.ONCE, start, start + 40 * DAY)
    [gap] = clock_changes(Cron.parse("0 0 * * *"), ZoneInfo("Pacific/Apia"), *rules)
    assert (gap.kind, gap.day, gap.times) == ("gap", "2011-12-30", ("00:00",))


def test_a_gap_of_a_whole_day_names_its_day() -> None:
    start = parse_instant("2011-12-01T00:00:00Z")
    [change] = clock_changes(
        Cron.parse("0 12 * * *"), ZoneInfo("Pacific/Apia"), DstGap.SKIP, DstFold.ONCE, start, start + 40 * DAY
    )
    assert change.words == "clocks jump from 00:00 to 00:00; 12:00 does not exist: does not run"
    assert change.day == "2011-12-30"


def test_only_clock_changes_within_the_period_are_reported() -> None:
    cron, zone = Cron.parse("30 2 * * *"), ZoneInfo("Europe/Paris")
    jump = parse_instant("2026-03-29T01:00:00Z")
    rules = (DstGap.SKIP, DstFold.ONCE)
    assert clock_changes(cron, zone, *rules, jump - 1, jump) != []
    assert clock_changes(cron, zone, *rules, jump, jump + DAY) == []
    assert clock_changes(cron, zone, *rules, jump - DAY, jump - 1) == []
