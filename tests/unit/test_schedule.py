"""Schedule types, their validation, and the arithmetic of their ticks."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, LATEST, MINUTE, SECOND, Instant, parse_instant
from mainspring.core.model.schedules.cron import DstFold, DstGap
from mainspring.core.model.schedules.schedule import (
    LONGEST_INTERVAL,
    At,
    CronSchedule,
    Immediate,
    Interval,
    Schedule,
    compute_due,
    describe,
    latest_until,
    next_after,
    next_fires,
    ticks_between,
    validate,
)
from tests.support.boundaries import around_the_boundary
from tests.support.line_count import at_most_lines

KEY = "nightly-report"
NOON = parse_instant("2026-06-01T12:00:00Z")


# --- Values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (Immediate(), '{"type":"immediate"}'),
        (At(NOON), '{"type":"at","at":1780315200000000}'),
        (
            Interval(HOUR, start=0),
            '{"type":"interval","every":3600000000,"mode":"fixed_rate","start":0,"end":null,"jitter":0}',
        ),
        (
            CronSchedule("@daily", "Asia/Tokyo", DstGap.SKIP, DstFold.TWICE, end=1),
            """{"type":"cron","expression":"@daily","timezone":"Asia/Tokyo","gap":"skip","fold":"twice",
            "start":null,"end":1,"jitter":0}""",
        ),
    ],
)
def test_a_schedule_survives_encoding_as_json(schedule: Schedule, text: str) -> None:
    class Holder(msgspec.Struct):
        schedule: Schedule

    encoded = msgspec.json.encode(schedule)
    assert encoded == "".join(text.split()).encode()
    held = msgspec.json.decode(b'{"schedule":' + encoded + b"}", type=Holder)
    assert held.schedule == schedule


def test_a_cron_uses_utc_and_the_dst_rules_of_debian_by_default() -> None:
    schedule = msgspec.json.decode('{"type":"cron","expression":"0 9 * * *"}', type=CronSchedule)
    assert (schedule.timezone, schedule.gap, schedule.fold) == ("UTC", DstGap.RUN_AFTER, DstFold.ONCE)


@pytest.mark.parametrize(
    "schedule",
    [
        Immediate(),
        At(0),
        At(NOON),
        Interval(SECOND),
        Interval(LONGEST_INTERVAL),
        Interval(HOUR, "fixed_delay", start=NOON, end=NOON + 1, jitter=HOUR - 1),
        Interval(HOUR, start=0, end=LATEST),
        CronSchedule("@daily", jitter=DAY),
        CronSchedule("@hourly", start=NOON, end=NOON + 1),
        CronSchedule("@hourly", start=NOON + 1, end=NOON + HOUR),
        CronSchedule("@hourly", end=0),
        CronSchedule("H H * * *", "Asia/Kolkata", start=NOON, end=NOON + DAY, jitter=HOUR),
        CronSchedule("0 0 1 1 *", start=NOON, end=parse_instant("2027-01-01T00:00Z")),
        CronSchedule("0 0 1 1 *", end=NOON),
        CronSchedule("0 0 29 2 */7"),
    ],
)
def test_valid_schedules_are_accepted(schedule: Schedule) -> None:
    validate(schedule, KEY)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (At(-1), "at: is out of range (from 1970 to 9999)"),
        (At(LATEST + 1), "at: is out of range (from 1970 to 9999)"),
        (Interval(SECOND - 1), "every: is 999ms999us (at least 1s)"),
        (Interval(0), "every: is 0s (at least 1s)"),
        (Interval(-HOUR), "every: is negative (at least 1s)"),
        (Interval(LONGEST_INTERVAL + 1), "every: is out of range (at most 100 years)"),
        (Interval(HOUR, start=-1), "start: is out of range (from 1970 to 9999)"),
        (Interval(HOUR, end=LATEST + 1), "end: is out of range (from 1970 to 9999)"),
        (Interval(HOUR, start=NOON, end=NOON), "end: is not after the start (later than 2026-06-01T12:00:00Z)"),
        (Interval(HOUR, jitter=HOUR), "jitter: is 1h (less than the interval, which is 1h)"),
        (Interval(HOUR, jitter=-1), "jitter: is negative (less than the interval, which is 1h)"),
        (
            CronSchedule("* * * *"),
            "expression: has 4 fields (5, or 6 with seconds first; for example 30 9 * * MON-FRI)",
        ),
        (
            CronSchedule("0 0 30 2 *"),
            "expression: day of month: no such day exists in these months (it would never fire)",
        ),
        (CronSchedule("@daily", "Mars/Base"), "timezone: 'Mars/Base' is not a known time zone"),
        (CronSchedule("@daily", jitter=DAY + 1), "jitter: is 1d1us (at most 1d)"),
        (CronSchedule("@daily", jitter=-1), "jitter: is negative (at most 1d)"),
        (
            CronSchedule("@hourly", start=NOON + 1, end=NOON + HOUR - 1),
            "expression: never fires between its start and its end (the zone is UTC)",
        ),
        (
            CronSchedule("@daily", start=NOON, end=NOON - 1),
            "end: is not after the start (later than 2026-06-01T12:00:00Z)",
        ),
        (
            CronSchedule("@yearly", start=NOON, end=NOON + DAY),
            "expression: never fires between its start and its end (the zone is UTC)",
        ),
        (
            CronSchedule("30 2 * 3 0#2", "America/New_York", DstGap.SKIP),
            "expression: never fires (the zone is America/New_York)",
        ),
        (
            CronSchedule("30 2 * 3 0#2", "America/New_York", DstGap.SKIP, start=NOON),
            "expression: never fires between its start and its end (the zone is America/New_York)",
        ),
    ],
)
def test_an_invalid_schedule_is_rejected_by_field(schedule: Schedule, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        validate(schedule, KEY)
    assert str(refused.value).startswith(message)


# --- Once -----------------------------------------------------------------------------------------------------------


def test_at_has_one_tick_and_immediate_none() -> None:
    assert next_after(At(NOON), NOON - 1, KEY) == NOON
    assert next_after(At(NOON), NOON, KEY) is None
    assert latest_until(At(NOON), NOON, KEY) == NOON
    assert latest_until(At(NOON), NOON - 1, KEY) is None
    assert ticks_between(At(NOON), 0, LATEST, KEY, 10) == [NOON]
    assert next_fires(At(NOON), 0, KEY) == [NOON]
    assert next_after(Immediate(), 0, KEY) is None
    assert latest_until(Immediate(), LATEST, KEY) is None
    assert ticks_between(Immediate(), 0, LATEST, KEY, 10) == []
    assert compute_due(Immediate(), NOON, KEY) == compute_due(At(NOON), NOON, KEY) == NOON


# --- Intervals ------------------------------------------------------------------------------------------------------


def test_a_fixed_rate_keeps_its_grid_from_the_start() -> None:
    schedule = Interval(7 * MINUTE, start=NOON)
    assert next_after(schedule, 0, KEY) == NOON
    assert next_after(schedule, NOON, KEY) == NOON + 7 * MINUTE
    assert next_after(schedule, NOON + 3650 * DAY, KEY) == NOON + (3650 * 1440 // 7 + 1) * 7 * MINUTE
    assert latest_until(schedule, NOON - 1, KEY) is None
    assert latest_until(schedule, NOON + 20 * MINUTE, KEY) == NOON + 14 * MINUTE


def test_a_fixed_rate_without_a_start_uses_a_grid_from_the_epoch() -> None:
    assert next_after(Interval(HOUR), NOON + 1, KEY) == NOON + HOUR
    assert next_after(Interval(HOUR), NOON - 1, KEY) == NOON


@around_the_boundary
@pytest.mark.parametrize(
    "schedule",
    [Interval(HOUR, start=NOON), Interval(HOUR, "fixed_delay", start=NOON), CronSchedule("@hourly", start=NOON)],
)
def test_the_start_of_a_schedule_is_inclusive(schedule: Interval | CronSchedule, offset: int) -> None:
    delay = offset if isinstance(schedule, Interval) and schedule.mode == "fixed_delay" else 0
    assert next_after(schedule, NOON + offset, KEY) == (NOON if offset < 0 else NOON + HOUR + delay)
    assert latest_until(schedule, NOON + offset, KEY) == (None if offset < 0 else NOON)


@around_the_boundary
@pytest.mark.parametrize(
    "schedule", [Interval(HOUR, end=NOON), Interval(HOUR, "fixed_delay", end=NOON), CronSchedule("@hourly", end=NOON)]
)
def test_no_tick_is_after_the_end_of_its_schedule(schedule: Interval | CronSchedule, offset: int) -> None:
    ends = msgspec.structs.replace(schedule, end=NOON + offset)
    assert next_after(ends, NOON - HOUR, KEY) == (None if offset < 0 else NOON)
    assert ticks_between(ends, NOON - HOUR, LATEST, KEY, 10) == ([] if offset < 0 else [NOON])


def test_a_cron_that_starts_after_a_tick_waits_for_the_next_one() -> None:
    schedule = CronSchedule("@hourly", start=NOON + 1)
    assert next_after(schedule, 0, KEY) == NOON + HOUR
    assert latest_until(schedule, NOON + HOUR - 1, KEY) is None


@around_the_boundary
@pytest.mark.parametrize("schedule", [Interval(HOUR), Interval(HOUR, "fixed_delay"), CronSchedule("@hourly")])
def test_listed_ticks_are_after_the_first_bound_and_up_to_the_second(
    schedule: Interval | CronSchedule, offset: int
) -> None:
    assert ticks_between(schedule, NOON - HOUR, NOON + offset, KEY, 1) == ([] if offset < 0 else [NOON])
    assert ticks_between(schedule, NOON - HOUR, NOON + offset, KEY, 0) == []


def test_five_upcoming_ticks_are_listed_by_default() -> None:
    assert next_fires(Interval(HOUR), NOON, KEY) == [NOON + number * HOUR for number in range(1, 6)]
    assert next_fires(Interval(HOUR), NOON, KEY, 1) == [NOON + HOUR]
    assert next_fires(Interval(HOUR), NOON, KEY, 0) == []


def test_the_end_of_a_schedule_is_inclusive() -> None:
    schedule = Interval(HOUR, start=NOON, end=NOON + 2 * HOUR)
    assert next_fires(schedule, 0, KEY, 10) == [NOON, NOON + HOUR, NOON + 2 * HOUR]
    assert latest_until(schedule, LATEST, KEY) == NOON + 2 * HOUR
    assert ticks_between(schedule, NOON, LATEST, KEY, 10) == [NOON + HOUR, NOON + 2 * HOUR]


def test_a_fixed_delay_counts_from_the_end_of_the_run() -> None:
    schedule = Interval(HOUR, "fixed_delay", start=NOON, end=NOON + DAY)
    assert next_after(schedule, NOON - DAY, KEY) == NOON
    assert next_after(schedule, NOON + 17, KEY) == NOON + HOUR + 17
    assert next_after(schedule, NOON + DAY, KEY) is None
    assert latest_until(schedule, LATEST, KEY) == NOON
    assert latest_until(schedule, NOON - 1, KEY) is None
    assert latest_until(Interval(HOUR, "fixed_delay"), LATEST, KEY) is None
    assert ticks_between(schedule, NOON + 17, LATEST, KEY, 10) == [NOON + HOUR + 17]
    assert ticks_between(schedule, NOON + 17, NOON + HOUR, KEY, 10) == []


def test_no_tick_is_after_the_year_9999() -> None:
    assert next_after(Interval(HOUR), LATEST, KEY) is None
    assert next_after(CronSchedule("* * * * * *"), LATEST, KEY) is None


# --- Crons ----------------------------------------------------------------------------------------------------------


def test_a_cron_fires_from_its_start_to_its_end_both_inclusive() -> None:
    schedule = CronSchedule("0 * * * *", start=NOON, end=NOON + 2 * HOUR)
    assert next_fires(schedule, 0, KEY) == [NOON, NOON + HOUR, NOON + 2 * HOUR]
    assert latest_until(schedule, LATEST, KEY) == NOON + 2 * HOUR
    assert latest_until(schedule, NOON - 1, KEY) is None


def test_a_cron_follows_its_zone_and_its_dst_rules() -> None:
    skipping = CronSchedule("30 2 * * *", "Europe/Paris", DstGap.SKIP)
    assert next_after(skipping, parse_instant("2026-03-28T12:00Z"), KEY) == parse_instant("2026-03-30T00:30Z")
    assert next_after(CronSchedule("30 2 * * *", "Europe/Paris"), parse_instant("2026-03-28T12:00Z"), KEY) == (
        parse_instant("2026-03-29T01:00Z")
    )


def test_the_key_changes_only_hashed_fields() -> None:
    assert next_after(CronSchedule("H * * * *"), NOON, "a") != next_after(CronSchedule("H * * * *"), NOON, "b")
    assert next_after(CronSchedule("h * * * *"), NOON, "a") == next_after(CronSchedule("H * * * *"), NOON, "a")
    assert next_after(CronSchedule("5 * * * *"), NOON, "a") == next_after(CronSchedule("5 * * * *"), NOON, "b")


# --- Missed ticks ---------------------------------------------------------------------------------------------------

schedules: st.SearchStrategy[Interval | CronSchedule] = st.one_of(
    st.builds(
        Interval,
        every=st.integers(SECOND, 3 * HOUR),
        start=st.none() | st.integers(NOON - DAY, NOON + DAY),
        end=st.none() | st.integers(NOON + DAY, NOON + 3 * DAY),
    ),
    st.builds(
        CronSchedule,
        expression=st.sampled_from(
            ["*/20 * * * *", "30 2 * * *", "H H(0-5) * * *", "0 0 9-17 * * *", "15 1,2 * * 1-5"]
        ),
        timezone=st.sampled_from(["UTC", "Europe/Paris", "Australia/Lord_Howe"]),
        gap=st.sampled_from(DstGap),
        fold=st.sampled_from(DstFold),
        start=st.none() | st.integers(NOON - DAY, NOON + DAY),
        end=st.none() | st.integers(NOON + DAY, NOON + 3 * DAY),
    ),
)


@given(schedules, st.integers(NOON - 2 * DAY, NOON + 2 * DAY), st.integers(0, 6 * HOUR), st.integers(0, 30))
def test_the_newest_of_the_missed_ticks_are_those_that_walking_finds(
    schedule: Interval | CronSchedule, after: Instant, length: int, limit: int
) -> None:
    walked, tick = [], next_after(schedule, after, KEY)
    while tick is not None and tick <= after + length:
        walked.append(tick)
        tick = next_after(schedule, tick, KEY)
    assert ticks_between(schedule, after, after + length, KEY, limit) == (walked[-limit:] if limit else [])
    assert ticks_between(schedule, after, after + length, KEY, 100_000) == walked
    latest = latest_until(schedule, after + length, KEY)
    assert not walked or latest == walked[-1]
    assert latest is None or latest <= after or latest in walked


@pytest.mark.parametrize("schedule", [CronSchedule("* * * * * *", "Europe/Paris"), Interval(SECOND)])
def test_a_year_of_missed_per_second_ticks_is_listed_without_walking_them(
    schedule: Interval | CronSchedule,
) -> None:
    with at_most_lines(500_000):
        ticks = ticks_between(schedule, NOON - 365 * DAY, NOON, KEY, 1_000)
    assert ticks == [NOON - missed * SECOND for missed in range(999, -1, -1)]
    with at_most_lines(1_000):
        latest_until(schedule, NOON, KEY)


def test_the_next_fire_of_a_cron_takes_a_few_hundred_lines_of_python() -> None:
    crons = [CronSchedule(f"{n % 60} {n % 24} * * MON-FRI", "America/New_York") for n in range(1_000)]
    with at_most_lines(300 * len(crons)):
        for cron in crons:
            next_after(cron, NOON, KEY)


# --- Jitter ---------------------------------------------------------------------------------------------------------


def test_jitter_is_stable_inside_its_bounds_and_differs_by_tick_and_key() -> None:
    schedule = Interval(HOUR, jitter=MINUTE)
    dues = [compute_due(schedule, NOON + n * HOUR, KEY) - NOON - n * HOUR for n in range(500)]
    assert all(0 <= delay < MINUTE for delay in dues)
    assert len(set(dues)) > 490
    assert max(dues) > 55 * SECOND
    assert min(dues) < 5 * SECOND
    assert compute_due(schedule, NOON, KEY) == compute_due(schedule, NOON, KEY)
    assert compute_due(schedule, NOON, KEY) != compute_due(schedule, NOON, "another")
    # Stable across versions: nodes of different releases must agree on the due time.
    assert compute_due(schedule, NOON, KEY) == NOON + 26_693_362
    assert compute_due(CronSchedule("@daily", jitter=1), NOON, KEY) == NOON
    assert compute_due(CronSchedule("@daily"), NOON, KEY) == NOON


def test_jitter_does_not_move_a_tick() -> None:
    assert next_fires(CronSchedule("@daily", jitter=HOUR), NOON, KEY) == next_fires(CronSchedule("@daily"), NOON, KEY)


# --- Words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Immediate(), "at once"),
        (At(NOON), "once at 2026-06-01T12:00:00Z"),
        (Interval(90 * MINUTE), "every 1h30m"),
        (Interval(5 * MINUTE, "fixed_delay"), "5m after the end of the previous run"),
        (CronSchedule("30 9 * * MON", "Europe/Paris"), "every Monday at 09:30 (Europe/Paris)"),
        (
            CronSchedule("@hourly", start=NOON, end=NOON + DAY, jitter=MINUTE),
            "every hour (UTC), from 2026-06-01T12:00:00Z, until 2026-06-02T12:00:00Z, up to 1m later",
        ),
    ],
)
def test_a_schedule_is_described_in_words(schedule: Schedule, words: str) -> None:
    assert describe(schedule) == words


def test_the_description_of_a_hashed_expression_depends_on_the_key() -> None:
    assert describe(CronSchedule("H H * * *"), "a") != describe(CronSchedule("H H * * *"), "b")
