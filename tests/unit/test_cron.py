"""Cron expressions, compared with a scan of wall time and with cronsim, and by example."""

import calendar
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import product
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import LATEST, SECOND, Instant, from_datetime, isoformat, to_datetime
from mainspring.core.model.schedules.cron import Cron, DstFold, DstGap, load_zone
from mainspring.core.model.schedules.cron.zone import FIRST_SECOND, Segment, segment_at
from tests.support.line_count import at_most_lines

DEBIAN = (DstGap.RUN_AFTER, DstFold.ONCE)
SWITCHES = list(product(DstGap, DstFold))
NAMES = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]

# A day with a change of offset, in UTC: gaps and folds at night, at midnight, of half an hour and of a whole day.
CHANGES = [
    ("Europe/Paris", "2026-03-29"),
    ("Europe/Paris", "2026-10-25"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("America/Sao_Paulo", "2018-02-18"),
    ("America/Sao_Paulo", "2018-11-04"),
    ("Australia/Lord_Howe", "2026-04-04"),
    ("Australia/Lord_Howe", "2026-10-03"),
    ("Asia/Beirut", "2026-03-28"),
    ("Asia/Beirut", "2026-10-24"),
    ("Africa/Cairo", "2026-04-23"),
    ("Africa/Cairo", "2026-10-29"),
    ("America/Havana", "2026-03-08"),
    ("America/Havana", "2026-11-01"),
    ("Pacific/Apia", "2011-12-30"),
    ("Pacific/Apia", "2011-09-24"),
    ("Asia/Kolkata", "2026-03-29"),
    ("UTC", "2026-03-29"),
]


def at(text: str) -> Instant:
    return from_datetime(datetime.fromisoformat(text))


def fires(
    expression: str, zone: str, after: str, count: int, gap: DstGap = DEBIAN[0], fold: DstFold = DEBIAN[1]
) -> list[str]:
    """The next fires in local time with its offset, short: 29 03:00+02:00."""
    cron, moment, found = Cron.parse(expression), at(after), list[str]()
    for _ in range(count):
        following = cron.next_after(moment, ZoneInfo(zone), gap, fold)
        assert following is not None
        assert following > moment
        assert cron.latest_until(following, ZoneInfo(zone), gap, fold) == following
        assert not found or cron.latest_until(following - 1, ZoneInfo(zone), gap, fold) == moment
        found.append(to_datetime(following).astimezone(ZoneInfo(zone)).isoformat()[8:].replace("T", " "))
        moment = following
    return [text.replace(":00+", "+", 1).replace(":00-", "-", 1) for text in found]


def next_in_utc(expression: str, after: str, hash_key: str = "") -> str:
    cron = Cron.parse(expression, hash_key=hash_key)
    following = cron.next_after(at(after), ZoneInfo("UTC"), *DEBIAN)
    return "never" if following is None else isoformat(following)


# --- The reference: every second or minute of UTC in turn, decided by membership and policy -------------------------


class Part(NamedTuple):
    """A field as text, together with what it means, so that the reference needs no parser."""

    text: str
    values: frozenset[int]

    @property
    def starred(self) -> bool:
        return self.text.startswith("*")


def parts(low: int, high: int, *, stars: int = 1) -> st.SearchStrategy[Part]:
    """Fields of every plain form over low to high; ``stars`` weighs the bare star."""
    number = st.integers(low, high)

    def ranged(bounds: tuple[int, int]) -> Part:
        first, last = sorted(bounds)
        return Part(f"{first}-{last}", frozenset(range(first, last + 1)))

    def stepped(bounds: tuple[int, int, int]) -> Part:
        first, last = sorted(bounds[:2])
        return Part(f"{first}-{last}/{bounds[2]}", frozenset(range(first, last + 1, bounds[2])))

    def from_value(pair: tuple[int, int]) -> Part:
        # A week ends on Saturday: Sunday's second number is not a step further.
        end = max(pair[0], 6 if high == 7 else high)
        return Part(f"{pair[0]}/{pair[1]}", frozenset(range(pair[0], end + 1, pair[1])))

    def joined(items: list[Part]) -> Part:
        return Part(",".join(item.text for item in items), frozenset().union(*(item.values for item in items)))

    step = st.integers(1, high - low)
    star = st.just(Part("*", frozenset(range(low, high + 1))))
    single = number.map(lambda value: Part(str(value), frozenset({value})))
    simple = st.one_of(
        single,
        st.tuples(number, number).map(ranged),
        st.tuples(number, number, step).map(stepped),
        step.map(lambda size: Part(f"*/{size}", frozenset(range(low, high + 1, size)))),
        st.tuples(number, step).map(from_value),
    )
    return st.one_of(*[star] * stars, single, simple, st.lists(simple, min_size=2, max_size=3).map(joined))


class Expression(NamedTuple):
    second: Part
    minute: Part
    hour: Part
    day: Part
    month: Part
    weekday: Part

    @property
    def text(self) -> str:
        fields = self if self.second.text else self[1:]
        return " ".join(field.text for field in fields)

    @property
    def fixed(self) -> bool:
        return not (self.minute.starred or self.hour.starred)

    def has(self, wall: datetime) -> bool:
        return (
            wall.minute in self.minute.values
            and wall.hour in self.hour.values
            and wall.second in self.second.values
            and wall.month in self.month.values
            and self.has_day(wall)
        )

    def has_day(self, wall: datetime) -> bool:
        by_month = wall.day in self.day.values
        by_week = wall.isoweekday() % 7 in {weekday % 7 for weekday in self.weekday.values}
        if self.day.starred or self.weekday.starred:
            return by_month and by_week
        return by_month or by_week


NO_SECONDS = st.just(Part("", frozenset({0})))
AT_NIGHT = st.sampled_from(
    [
        Part("0", frozenset({0})),
        Part("2", frozenset({2})),
        Part("0-3", frozenset({0, 1, 2, 3})),
        Part("1,23", frozenset({1, 23})),
        Part("*/2", frozenset(range(0, 24, 2))),
    ]
)


def expressions(second: st.SearchStrategy[Part] = NO_SECONDS) -> st.SearchStrategy[Expression]:
    """Mostly dense in days and at night, where the clocks change."""
    return st.builds(
        Expression,
        second=second,
        minute=parts(0, 59),
        hour=st.one_of(parts(0, 23), AT_NIGHT),
        day=parts(1, 31, stars=4),
        month=parts(1, 12, stars=8),
        weekday=parts(0, 7, stars=4),
    )


class Step(NamedTuple):
    second: int
    wall: datetime
    #: Whether this is the second pass of a repeated wall time.
    again: bool
    #: The wall times that the clocks skipped just before.
    missed: list[datetime]


def find_change(zone: str, day: str) -> datetime:
    """The hour of UTC on that day at or before which the offset changes, or midnight if it does not."""
    midnight = datetime.fromisoformat(day).replace(tzinfo=UTC)
    hours = [midnight + timedelta(hours=hour) for hour in range(24)]
    offsets = [(hour - timedelta(hours=1)).astimezone(ZoneInfo(zone)).utcoffset() for hour in hours]
    return next(
        (h for h, o in zip(hours, offsets, strict=True) if h.astimezone(ZoneInfo(zone)).utcoffset() != o), midnight
    )


def steps(zone: str, day: str, size: int, before: int, after: int) -> list[Step]:
    """The hours around a change, a step of ``size`` seconds at a time."""
    middle = find_change(zone, day)
    moment, last = middle - timedelta(hours=before), middle + timedelta(hours=after)
    step, found = timedelta(seconds=size), []
    previous = (moment - step).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    while moment < last:
        local = moment.astimezone(ZoneInfo(zone))
        wall = local.replace(tzinfo=None, fold=0)
        missed, skipped = [], previous + step
        while skipped < wall:
            missed.append(skipped)
            skipped += step
        found.append(Step(int(moment.timestamp()), wall, local.fold == 1, missed))
        previous, moment = wall, moment + step
    return found


def scan(expression: Expression, walk: list[Step], gap: DstGap, fold: DstFold) -> list[int]:
    found = []
    for step in walk:
        if expression.fixed:
            fire = expression.has(step.wall) and (fold is DstFold.TWICE or not step.again)
            if step.missed and gap is DstGap.RUN_AFTER and any(map(expression.has, step.missed)):
                fire = True
        else:
            fire = expression.has(step.wall)
        if fire:
            found.append(step.second)
    return found


def forwards(cron: Cron, zone: str, low: int, high: int, gap: DstGap, fold: DstFold) -> list[int]:
    found, moment = [], low * SECOND - 1
    while (following := cron.next_after(moment, ZoneInfo(zone), gap, fold)) is not None and following < high * SECOND:
        assert following > moment
        found.append(following // SECOND)
        moment = following
    return found


def backwards(cron: Cron, zone: str, low: int, high: int, gap: DstGap, fold: DstFold) -> list[int]:
    found, moment = [], high * SECOND - 1
    while (latest := cron.latest_until(moment, ZoneInfo(zone), gap, fold)) is not None and latest >= low * SECOND:
        assert latest <= moment
        found.append(latest // SECOND)
        moment = latest - 1
    return found[::-1]


def parse_if_possible(text: str) -> Cron | None:
    """Parse an expression; return ``None`` if it is valid except that its day never exists."""
    try:
        return Cron.parse(text)
    except Invalid as refused:
        if "no such day" in refused.reason:
            return None
        raise


def check_agreement(expression: Expression, zone: str, walk: list[Step], size: int) -> None:
    cron = parse_if_possible(expression.text)
    if cron is None:
        assert scan(expression, walk, *DEBIAN) == []
        return
    assert cron.fixed_times is expression.fixed
    low, high = walk[0].second, walk[-1].second + size
    for gap, fold in SWITCHES:
        expected = scan(expression, walk, gap, fold)
        assert forwards(cron, zone, low, high, gap, fold) == expected, (gap, fold)
        assert backwards(cron, zone, low, high, gap, fold) == expected, (gap, fold)


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_fires_around_a_clock_change_are_those_that_a_scan_by_minute_finds(zone: str, day: str) -> None:
    walk = steps(zone, day, 60, 30, 30)
    assert zone in ("Asia/Kolkata", "UTC") or any(step.missed or step.again for step in walk)

    @settings(max_examples=12, deadline=None)
    @given(expressions())
    def check(expression: Expression) -> None:
        check_agreement(expression, zone, walk, 60)

    check()


@pytest.mark.parametrize(("zone", "day"), CHANGES[::3])
def test_fires_with_seconds_are_those_that_a_scan_by_second_finds(zone: str, day: str) -> None:
    walk = steps(zone, day, 1, 2, 3)
    sparse = st.sampled_from(["0", "30", "59", "15,45"]).map(
        lambda text: Part(text, frozenset(int(value) for value in text.split(",")))
    )
    twenty = Part("*/20", frozenset({0, 20, 40}))

    @settings(max_examples=4, deadline=None)
    @given(expressions(second=st.one_of(sparse, st.just(twenty))))
    def check(expression: Expression) -> None:
        check_agreement(expression, zone, walk, 1)

    check()


# --- The calendar, day by day ---------------------------------------------------------------------------------------

DayRule = tuple[str, Callable[[date], bool]]


def last_day(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def nearest_weekday(day: date, target: int) -> bool:
    """Whether ``day`` is the weekday of its month that is nearest to its day ``target``."""
    if target > last_day(day):
        return False
    month = [day.replace(day=number) for number in range(1, last_day(day) + 1)]
    weekdays = [other.day for other in month if other.weekday() < 5]
    # The minimum is unique: no two weekdays are equally near to a Saturday or a Sunday.
    return day.day == min(weekdays, key=lambda number: abs(number - target))


def last_weekday(day: date) -> bool:
    return day.day == max(n for n in range(1, last_day(day) + 1) if day.replace(day=n).weekday() < 5)


month_days: st.SearchStrategy[DayRule] = st.one_of(
    st.just(("L", lambda day: day.day == last_day(day))),
    st.just(("LW", last_weekday)),
    st.integers(1, 30).map(lambda n: (f"L-{n}", lambda day: day.day == last_day(day) - n)),
    st.integers(1, 31).map(lambda n: (f"{n}W", lambda day: nearest_weekday(day, n))),
    st.integers(1, 31).map(lambda n: (str(n), lambda day: day.day == n)),
)
week_days: st.SearchStrategy[DayRule] = st.one_of(
    st.integers(0, 7).map(
        lambda n: (f"{n}L", lambda day: day.isoweekday() % 7 == n % 7 and day.day + 7 > last_day(day))
    ),
    st.tuples(st.integers(0, 7), st.integers(1, 5)).map(
        lambda pair: (
            f"{pair[0]}#{pair[1]}",
            lambda day: day.isoweekday() % 7 == pair[0] % 7 and (day.day - 1) // 7 + 1 == pair[1],
        )
    ),
    st.integers(0, 6).map(lambda n: (NAMES[n].lower(), lambda day: day.isoweekday() % 7 == n)),
)
DAYS = [date(2024, 1, 1) + timedelta(days=number) for number in range(3 * 365)]


@given(st.lists(month_days, max_size=2), st.lists(week_days, max_size=2), parts(1, 12, stars=2), st.sampled_from("*?"))
def test_special_days_match_the_calendar(
    of_month: list[DayRule], of_week: list[DayRule], months: Part, anything: str
) -> None:
    day_text = ",".join(text for text, _ in of_month) or anything
    week_text = ",".join(text for text, _ in of_week) or anything
    cron_text = f"0 0 {day_text} {months.text} {week_text}"
    rules = [rule for _, rule in of_month + of_week] or [lambda _: True]
    expected = [day for day in DAYS if day.month in months.values and any(rule(day) for rule in rules)]
    cron = parse_if_possible(cron_text)
    if cron is None:
        assert not expected
        return
    low, high = ((day - date(1970, 1, 1)).days * 86_400 for day in (DAYS[0], DAYS[-1] + timedelta(days=1)))
    for walk in (forwards, backwards):
        seconds = walk(cron, "UTC", low, high, *DEBIAN)
        assert [date(1970, 1, 1) + timedelta(seconds=second) for second in seconds] == expected


# --- The time of day, second by second ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "seconds", "minutes", "hours"),
    [
        ("0 0 0", {0}, {0}, {0}),
        ("59 59 23", {59}, {59}, {23}),
        ("30 15 12", {30}, {15}, {12}),
        ("0,59 0,59 0,23", {0, 59}, {0, 59}, {0, 23}),
        ("1,30,58 1,30,58 1,12,22", {1, 30, 58}, {1, 30, 58}, {1, 12, 22}),
        ("*/20 */30 */8", {0, 20, 40}, {0, 30}, {0, 8, 16}),
    ],
)
def test_times_of_day_are_those_that_a_scan_finds(
    expression: str, seconds: set[int], minutes: set[int], hours: set[int]
) -> None:
    cron = Cron.parse(f"{expression} * * *")
    day = 20_000 * 86_400
    matches = sorted(
        day + (days * 24 + hour) * 3_600 + minute * 60 + second
        for days, hour, minute, second in product((-1, 0, 1), hours, minutes, seconds)
    )
    probes = {day, day + 86_399, *(match + offset for match in matches for offset in (-61, -60, -1, 0, 1, 60))}
    for probe in probes:
        if day <= probe < day + 86_400:
            assert cron.wall_from(probe) == min(match for match in matches if match >= probe)
            assert cron.wall_until(probe) == max(match for match in matches if match <= probe)


# --- cronsim as a second opinion ------------------------------------------------------------------------------------

ZONES = sorted({zone for zone, _ in CHANGES})
# A zone and an instant: any, or within a day or so of a change of the clocks.
zoned_instants = st.one_of(
    st.tuples(st.sampled_from(ZONES), st.integers(at("1990-01-01T00:00Z"), at("2040-01-01T00:00Z"))),
    st.tuples(st.sampled_from(CHANGES), st.integers(-100_000, 100_000)).map(
        lambda pair: (pair[0][0], at(f"{pair[0][1]}T00:00Z") + pair[1] * SECOND)
    ),
)


@given(expressions(), zoned_instants)
def test_cronsim_finds_the_same_fires_by_the_default_rules(expression: Expression, zoned: tuple[str, Instant]) -> None:
    zone, start = zoned
    local = to_datetime(start).astimezone(ZoneInfo(zone))
    if any(f"{number}-{number}/" in expression.text for number in range(60)):
        return  # cronsim takes 5-5/2 for 5/2
    if re.search(r"[0-9A-Z]/", expression.weekday.text):
        return  # cronsim ends 1/2 on a Sunday, as 7
    if not expression.fixed and zone not in ("America/New_York", "Asia/Kolkata", "Europe/Paris", "UTC"):
        return  # by elapsed time cronsim errs where midnight is missing, and where half an hour is
    if local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset():
        return  # cronsim forgets in which of two hours it was asked
    try:
        cron, oracle = Cron.parse(expression.text), CronSim(expression.text, local)
    except Invalid:
        return
    moment = from_datetime(local)
    for _ in range(6):
        following = cron.next_after(moment, ZoneInfo(zone), *DEBIAN)
        assert following == from_datetime(next(oracle))
        moment = following


# --- Next and latest are each other's inverse -----------------------------------------------------------------------


@given(
    expressions(second=st.one_of(NO_SECONDS, parts(0, 59))),
    zoned_instants,
    st.sampled_from(SWITCHES),
)
def test_the_latest_fire_until_an_instant_and_the_next_one_after_it_are_neighbors(
    expression: Expression, zoned: tuple[str, Instant], switches: tuple[DstGap, DstFold]
) -> None:
    zone, moment = zoned
    try:
        cron = Cron.parse(expression.text)
    except Invalid:
        return
    local = ZoneInfo(zone)
    following = cron.next_after(moment, local, *switches)
    latest = cron.latest_until(moment, local, *switches)
    assert following is not None
    assert latest is not None
    assert latest <= moment < following
    assert following % SECOND == latest % SECOND == 0
    assert cron.next_after(latest, local, *switches) == following
    assert cron.latest_until(following - 1, local, *switches) == latest
    assert cron.latest_until(following, local, *switches) == following
    assert cron.next_after(latest - 1, local, *switches) == latest


# --- By example: the clocks change ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "gap", "expected"),
    [
        ("30 2 * * *", DstGap.RUN_AFTER, ["28 02:30+01:00", "29 03:00+02:00", "30 02:30+02:00"]),
        ("30 2 * * *", DstGap.SKIP, ["28 02:30+01:00", "30 02:30+02:00", "31 02:30+02:00"]),
        ("0 2 * * *", DstGap.SKIP, ["28 02:00+01:00", "30 02:00+02:00", "31 02:00+02:00"]),
        ("0 30 2 * * *", DstGap.RUN_AFTER, ["28 02:30+01:00", "29 03:00+02:00", "30 02:30+02:00"]),
        ("0,20,40 2 * * *", DstGap.RUN_AFTER, ["28 02:00+01:00", "28 02:20+01:00", "28 02:40+01:00", "29 03:00+02:00"]),
        ("30 2,3 29 * *", DstGap.RUN_AFTER, ["29 03:00+02:00", "29 03:30+02:00"]),
        ("0 3 * * *", DstGap.RUN_AFTER, ["28 03:00+01:00", "29 03:00+02:00", "30 03:00+02:00"]),
        ("30 2 29 3 *", DstGap.RUN_AFTER, ["29 03:00+02:00"]),
    ],
)
def test_a_fixed_time_in_the_spring_gap_runs_at_the_jump_or_not_at_all(
    expression: str, gap: DstGap, expected: list[str]
) -> None:
    assert fires(expression, "Europe/Paris", "2026-03-28T00:00+01:00", len(expected), gap=gap) == expected


@pytest.mark.parametrize(
    ("expression", "fold", "expected"),
    [
        ("30 2 * * *", DstFold.ONCE, ["25 02:30+02:00", "26 02:30+01:00"]),
        ("30 2 * * *", DstFold.TWICE, ["25 02:30+02:00", "25 02:30+01:00", "26 02:30+01:00"]),
        ("0 30 2 * * *", DstFold.ONCE, ["25 02:30+02:00", "26 02:30+01:00"]),
        ("30 2,3 * * *", DstFold.TWICE, ["25 02:30+02:00", "25 02:30+01:00", "25 03:30+01:00"]),
        ("30 2 25 10 *", DstFold.TWICE, ["25 02:30+02:00", "25 02:30+01:00", "25 02:30+02:00", "25 02:30+02:00"]),
    ],
)
def test_a_fixed_time_in_the_autumn_fold_runs_in_the_first_pass_or_in_both(
    expression: str, fold: DstFold, expected: list[str]
) -> None:
    assert fires(expression, "Europe/Paris", "2026-10-25T00:00+02:00", len(expected), fold=fold) == expected


@pytest.mark.parametrize(("gap", "fold"), SWITCHES)
def test_wildcard_hours_fire_by_elapsed_time_under_every_dst_rule(gap: DstGap, fold: DstFold) -> None:
    spring = fires("*/30 * * * *", "Europe/Paris", "2026-03-29T01:15+01:00", 3, gap, fold)
    assert spring == ["29 01:30+01:00", "29 03:00+02:00", "29 03:30+02:00"]
    autumn = fires("*/30 * * * *", "Europe/Paris", "2026-10-25T01:45+02:00", 5, gap, fold)
    assert autumn == ["25 02:00+02:00", "25 02:30+02:00", "25 02:00+01:00", "25 02:30+01:00", "25 03:00+01:00"]
    wild_minute = fires("*/30 2 * * *", "Europe/Paris", "2026-03-28T12:00+01:00", 1, gap, fold)
    assert wild_minute == ["30 02:00+02:00"]


def test_the_next_fire_from_the_second_pass_of_a_fold_is_not_in_the_first() -> None:
    assert fires("30 2 * * *", "Europe/Paris", "2026-10-25T02:10+01:00", 1) == ["26 02:30+01:00"]
    assert fires("30 2 * * *", "Europe/Paris", "2026-10-25T02:10+01:00", 1, fold=DstFold.TWICE) == ["25 02:30+01:00"]


def test_a_gap_of_half_an_hour_moves_a_fire_to_its_end() -> None:
    found = fires("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00+10:30", 2)
    assert found == ["04 02:30+11:00", "05 02:15+11:00"]


def test_a_midnight_that_does_not_exist_fires_when_the_day_begins() -> None:
    assert fires("0 0 * * *", "Asia/Beirut", "2026-03-28T12:00+02:00", 2) == ["29 01:00+03:00", "30 00:00+03:00"]
    assert fires("0 0 * * SUN", "America/Havana", "2026-03-05T12:00-05:00", 1) == ["08 01:00-04:00"]


def test_samoas_missing_day_is_one_gap() -> None:
    expected = ["29 12:00-10:00", "31 00:00+14:00", "31 12:00+14:00"]
    assert fires("0 12,18 29-31 12 *", "Pacific/Apia", "2011-12-29T18:00-10:00", 2) == expected[1:]
    assert fires("0 12 * * *", "Pacific/Apia", "2011-12-29T00:00-10:00", 3) == expected
    skipped = fires("0 12 * * *", "Pacific/Apia", "2011-12-29T00:00-10:00", 2, gap=DstGap.SKIP)
    assert skipped == ["29 12:00-10:00", "31 12:00+14:00"]


def test_an_expression_that_fires_only_inside_gaps_never_fires() -> None:
    # New York's clocks jump over 02:30 on the second Sunday of March, every year.
    cron, zone = Cron.parse("30 2 * 3 0#2"), ZoneInfo("America/New_York")
    with at_most_lines(300_000):
        assert cron.next_after(at("2026-01-01T00:00Z"), zone, DstGap.SKIP, DstFold.ONCE) is None
        assert Cron.parse("* * 2 * 3 0#2").next_after(at("2026-01-01T00:00Z"), zone, *DEBIAN) is None
    assert cron.next_after(at("2026-01-01T00:00Z"), zone, *DEBIAN) == at("2026-03-08T03:00-04:00")


# --- By example: the calendar ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("0 0 29 2 *", "2026-01-01T00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 29 2 *", "2096-03-01T00:00Z", "2104-02-29T00:00:00Z"),
        ("0 0 29 2 */7", "2088-03-01T00:00Z", "2128-02-29T00:00:00Z"),
        ("0 0 * 2 MON#5", "2026-01-01T00:00Z", "2044-02-29T00:00:00Z"),
        ("0 0 */21 2 5L", "2026-01-01T00:00Z", "2030-02-22T00:00:00Z"),
        ("0 0 13 * FRI", "2026-02-07T00:00Z", "2026-02-13T00:00:00Z"),
        ("0 0 13 * FRI", "2026-02-13T00:00Z", "2026-02-20T00:00:00Z"),
        ("0 0 */2 * MON", "2026-02-01T00:00Z", "2026-02-09T00:00:00Z"),
        ("0 0 L * *", "2028-02-01T00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 L-3 * *", "2026-02-01T00:00Z", "2026-02-25T00:00:00Z"),
        ("0 0 LW * *", "2026-05-01T00:00Z", "2026-05-29T00:00:00Z"),
        ("0 0 15W * *", "2026-08-01T00:00Z", "2026-08-14T00:00:00Z"),
        ("0 0 1W * *", "2026-08-01T00:00Z", "2026-08-03T00:00:00Z"),
        ("0 0 31W * *", "2026-05-01T00:00Z", "2026-05-29T00:00:00Z"),
        ("0 0 ? * 5L", "2026-02-01T00:00Z", "2026-02-27T00:00:00Z"),
        ("0 0 ? * fri#2", "2026-02-01T00:00Z", "2026-02-13T00:00:00Z"),
        ("0 0 * * 7", "2026-02-01T00:00Z", "2026-02-08T00:00:00Z"),
        ("0 0 * * FRI-SUN", "2026-02-07T00:00Z", "2026-02-08T00:00:00Z"),
        ("0 0 * * FRI-SUN", "2026-02-08T00:00Z", "2026-02-13T00:00:00Z"),
        ("0 0 * * SUN-MON", "2026-02-09T00:00Z", "2026-02-15T00:00:00Z"),
        ("0 0 * * SUN-SUN", "2026-02-08T00:00Z", "2026-02-15T00:00:00Z"),
        ("0 0 5-5 * *", "2026-02-01T00:00Z", "2026-02-05T00:00:00Z"),
        ("0 0 1-10/4 * *", "2026-02-05T00:00Z", "2026-02-09T00:00:00Z"),
        ("0 0 1-10/4 * *", "2026-02-09T00:00Z", "2026-03-01T00:00:00Z"),
        ("0 0 5/10 * *", "2026-02-15T00:00Z", "2026-02-25T00:00:00Z"),
        ("0005 0 * * *", "2026-02-01T00:00Z", "2026-02-01T00:05:00Z"),
        ("5 0 * * *".ljust(200), "2026-02-01T00:00Z", "2026-02-01T00:05:00Z"),
        ("0 0 * * MON/2", "2026-02-06T00:00Z", "2026-02-09T00:00:00Z"),
        ("0 0 * * 7/2", "2026-02-06T00:00Z", "2026-02-08T00:00:00Z"),
        ("5/15 * * * *", "2026-02-01T00:35Z", "2026-02-01T00:50:00Z"),
        ("0 0 1 jan,Jul ?", "2026-02-01T00:00Z", "2026-07-01T00:00:00Z"),
        ("*/15 * * * * *", "2026-02-01T00:00:44.999999Z", "2026-02-01T00:00:45Z"),
        ("* * * * * *", "2026-02-01T00:00:00.000001Z", "2026-02-01T00:00:01Z"),
        ("* * * * * *", "2026-02-01T00:00:00Z", "2026-02-01T00:00:01Z"),
        ("0 12 * * *", "1969-12-31T23:59:59.5Z", "1970-01-01T12:00:00Z"),
        ("@hourly", "2026-02-01T00:00Z", "2026-02-01T01:00:00Z"),
        ("@daily", "2026-02-01T00:00Z", "2026-02-02T00:00:00Z"),
        (" @Midnight ", "2026-02-01T00:00Z", "2026-02-02T00:00:00Z"),
        ("@weekly", "2026-02-01T00:00Z", "2026-02-08T00:00:00Z"),
        ("@monthly", "2026-02-01T00:00Z", "2026-03-01T00:00:00Z"),
        ("@yearly", "2026-02-01T00:00Z", "2027-01-01T00:00:00Z"),
        ("@ANNUALLY", "2026-02-01T00:00Z", "2027-01-01T00:00:00Z"),
        ("0 0 1 1 *", "9998-06-01T00:00Z", "9999-01-01T00:00:00Z"),
        ("0 0 1 1 *", "9999-06-01T00:00Z", "never"),
        ("* * * * * *", "9999-12-31T23:59:58Z", "9999-12-31T23:59:59Z"),
        ("* * * * * *", "9999-12-31T23:59:59Z", "never"),
    ],
)
def test_the_next_fire_in_utc(expression: str, after: str, expected: str) -> None:
    assert next_in_utc(expression, after) == expected


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Europe/Paris"])
def test_instants_out_of_range_have_no_fires_and_raise_nothing(zone: str) -> None:
    local = ZoneInfo(zone)
    for hour, moment in product(
        (0, 5, 20), (-(10**30), -(10**17), 0, LATEST - 43_200 * SECOND, LATEST - SECOND, LATEST, LATEST + 1, 10**30)
    ):
        cron = Cron.parse(f"0 {hour} * * *")
        following = cron.next_after(moment, local, *DEBIAN)
        latest = cron.latest_until(moment, local, *DEBIAN)
        assert following is None or moment < following <= LATEST
        assert latest is None or latest <= moment
        assert cron.next_after(LATEST, local, *DEBIAN) is None
        assert cron.latest_until(-(10**30), local, *DEBIAN) is None


def test_the_first_second_of_the_calendar_is_included() -> None:
    first, cron = FIRST_SECOND * SECOND, Cron.parse("0 0 * * *")
    assert cron.latest_until(first, ZoneInfo("UTC"), *DEBIAN) == first
    assert cron.latest_until(first - 1, ZoneInfo("UTC"), *DEBIAN) is None
    assert cron.next_after(first - 1, ZoneInfo("UTC"), *DEBIAN) == first
    # The clocks of Paris were nine minutes ahead of UTC.
    assert cron.latest_until(first + 10 * SECOND, ZoneInfo("Europe/Paris"), *DEBIAN) is None


@pytest.mark.parametrize("later", [1, 10, 2 * 86_400, 2 * 86_400 + 1, 5 * 86_400])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_a_fire_beside_the_bounds_of_a_segment_is_found(offset: int, later: int) -> None:
    """Searches go from segment to segment. One of UTC is 2²¹ seconds long."""
    second = (850 << 21) + offset
    moment = to_datetime(second * SECOND)
    cron = Cron.parse(f"{moment:%S %M %H %d %m} *")
    assert cron.latest_until((second + later) * SECOND, ZoneInfo("UTC"), *DEBIAN) == second * SECOND
    assert cron.next_after((second - later) * SECOND, ZoneInfo("UTC"), *DEBIAN) == second * SECOND


def test_a_rare_fire_in_the_first_pass_of_a_fold_is_found_from_the_second() -> None:
    cron, until = Cron.parse("30 2 25 10 *"), at("2026-10-25T02:10+01:00")
    for fold in DstFold:
        latest = cron.latest_until(until, ZoneInfo("Europe/Paris"), DstGap.RUN_AFTER, fold)
        assert latest == at("2026-10-25T02:30+02:00")


def test_the_latest_fire_is_computed_without_walking_a_long_outage() -> None:
    cron, zone = Cron.parse("* * * * * *"), ZoneInfo("Europe/Paris")
    assert cron.latest_until(at("2036-05-05T05:05:05.9Z"), zone, *DEBIAN) == at("2036-05-05T05:05:05Z")
    rare = Cron.parse("0 0 29 2 */7")
    with at_most_lines(10_000):
        assert rare.latest_until(at("2128-01-01T00:00Z"), zone, *DEBIAN) == at("2088-02-29T00:00+01:00")
        assert rare.next_after(at("2088-03-01T00:00Z"), zone, *DEBIAN) == at("2128-02-29T00:00+01:00")
    with at_most_lines(1_000):
        cron.latest_until(at("2046-05-05T05:05:05.9Z"), zone, *DEBIAN)


# --- Rejections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "has 0 fields"),
        ("   ", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("0 0 0 1 1 ? 2026", "has 7 fields"),
        ("*/0 * * * *", "minute: step 0 is not allowed"),
        ("*/-2 * * * *", "minute: '*/-2' is not understood"),
        ("*/ * * * *", "minute: '*/' is not understood"),
        ("*/61 * * * *", "minute: step 61 is larger than the field, which has 60 values"),
        ("* */90 * * *", "hour: step 90 is larger than the field, which has 24 values"),
        ("60 * * * *", "minute: 60 is out of range"),
        ("60 * * * * *", "second: 60 is out of range"),
        ("* 24 * * *", "hour: 24 is out of range"),
        ("* * 0 * *", "day of month: 0 is out of range"),
        ("* * 32 * *", "day of month: 32 is out of range"),
        ("* * * 13 *", "month: 13 is out of range"),
        ("* * * * 8", "day of week: 8 is out of range"),
        ("30-10 * * * *", "minute: the range '30-10' is reversed"),
        ("* * * * FRI-MON", "day of week: the range 'FRI-MON' is reversed"),
        ("* 5-0 * * *", "hour: the range '5-0' is reversed"),
        ("1,,2 * * * *", "minute: an item of the list is empty"),
        ("1--2 * * * *", "minute: '1--2' is not understood"),
        ("1-2-3 * * * *", "minute: '1-2-3' is not understood"),
        ("1/2/3 * * * *", "minute: '1/2/3' is not understood"),
        ("** * * * *", "minute: '**' is not understood"),
        ("99999999999999999999 * * * *", "minute: '99999999999999999999' is not understood"),
        ("? * * * *", "minute: ? is not allowed here"),
        ("* * 1,? * *", "day of month: ? is not allowed here"),
        ("* * * JANUARY *", "month: 'JANUARY' is not understood"),
        ("* * MON * *", "day of month: 'MON' is not understood"),
        ("* * L-0x * *", "day of month: 'L-0X' is not understood"),
        ("* * L-31 * *", "day of month: no month has 'L-31'"),
        ("* * W * *", "day of month: 'W' is not understood"),
        ("* * 32W * *", "day of month: 32 is out of range"),
        ("* * L/2 * *", "day of month: 'L/2' is not understood"),
        ("* * * * L", "day of week: L needs a day before it"),
        ("* * * * 5#6", "day of week: '5#6' does not end in #1 to #5"),
        ("* * * * 5#", "day of week: '5#' does not end in #1 to #5"),
        ("* * * * 1-5L", "day of week: '1-5L' is not understood"),
        ("0 0 30 2 *", "day of month: no such day exists in these months"),
        ("0 0 31 4 *", "day of month: no such day exists in these months"),
        ("0 0 31 2,4,6,9,11 ?", "day of month: no such day exists in these months"),
        ("0 0 L-30 4 *", "day of month: no such day exists in these months"),
        ("0 0 */31,L-6 2 0#3", "day of month: no such day exists in these months"),
        ("0 0 LW * */7", "day of month: no such day exists in these months"),
        ("0 0 31 H *", "day of month: no such day exists in these months"),
        ("0 0 H(29-31) * *", "day of month: 'H(29-31)' may be a day that not every month has"),
        ("0 0 H(1-29) * *", "day of month: 'H(1-29)' may be a day that not every month has"),
        ("00005 0 * * *", "minute: '00005' is not understood"),
        ("5 0 * * *".ljust(201), "is longer than 200 characters"),
        ("H( * * * *", "minute: 'H(' is not understood"),
        ("H() * * * *", "minute: 'H()' is not understood"),
        ("H(5) * * * *", "minute: 'H(5)' is not understood"),
        ("H(9-5) * * * *", "minute: the range '9-5' is reversed"),
        ("H(0-99) * * * *", "minute: 99 is out of range"),
        ("H/0 * * * *", "minute: step 0 is not allowed"),
        ("HH * * * *", "minute: 'HH' is not understood"),
        ("H-5 * * * *", "minute: 'H-5' is not understood"),
        ("@reboot", "@reboot is not a time"),
        ("@every 5m", "'@every 5m' is not a known macro"),
        ("TZ=UTC 0 0 * * *", "a time zone or variable inside the expression is not allowed"),
        ("CRON_TZ=Asia/Tokyo 0 0 * * *", "a time zone or variable inside the expression is not allowed"),
        ("0 0 * * M\u00d6N", "has a character that is not ASCII"),
        ("\u0665 0 * * *", "has a character that is not ASCII"),
        (",".join(["1"] * 120) + " * * * *", "is longer than 200 characters"),
        ("1" * 10_000_000, "is longer than 200 characters"),
    ],
)
def test_an_invalid_expression_is_rejected_with_field_and_reason(expression: str, reason: str) -> None:
    with pytest.raises(Invalid) as refused:
        Cron.parse(expression, field="schedule.cron")
    assert refused.value.field == "schedule.cron"
    assert refused.value.reason == reason


@given(st.one_of(st.text(max_size=60), st.text("0123456789*/-,#?LWH()MONJAN@= \t", max_size=60)), st.text(max_size=5))
@example("0 0 29 2 */7", "")
@example("* * * * * *", "\ud800")
def test_any_text_is_parsed_or_rejected_as_invalid(text: str, key: str) -> None:
    try:
        cron = Cron.parse(text, hash_key=key)
    except Invalid:
        return
    assert cron.describe()
    with at_most_lines(300_000):
        assert cron.next_after(0, ZoneInfo("UTC"), *DEBIAN) is not None


pieces = st.sampled_from(
    [
        "*",
        "?",
        "H",
        "H/7",
        "H(1-5)",
        "H(1-6)/2",
        "5",
        "1-5",
        "*/3",
        "2/3",
        "L",
        "LW",
        "3W",
        "L-2",
        "5L",
        "1#2",
        "JAN",
        "MON",
        "00",
    ]
)


@given(st.lists(st.lists(pieces, min_size=1, max_size=2).map(",".join), min_size=5, max_size=6).map(" ".join))
def test_any_mixture_of_pieces_is_rejected_or_fires(text: str) -> None:
    try:
        cron = Cron.parse(text)
    except Invalid:
        return
    assert cron.describe()
    with at_most_lines(300_000):
        assert cron.next_after(0, ZoneInfo("Asia/Kolkata"), *DEBIAN) is not None
        assert cron.latest_until(at("2026-01-01T00:00Z"), ZoneInfo("Asia/Kolkata"), *DEBIAN) is not None


@given(st.text())
def test_the_validity_of_a_hashed_expression_does_not_depend_on_its_key(key: str) -> None:
    for expression in ("0 0 28 H *", "H H H H H", "0 0 29 H */7", "H H(2-3) */31 H H", "0 0 H(1-28) * H(0-7)"):
        Cron.parse(expression, hash_key=key)
    with pytest.raises(Invalid):
        Cron.parse("0 0 30 H *", hash_key=key)


# --- H --------------------------------------------------------------------------------------------------------------


def test_hashed_values_are_stable_across_versions() -> None:
    # These values are a promise: changing them moves the fires of every schedule that has an H.
    after = "2026-02-01T00:00Z"
    assert next_in_utc("H H * * *", after, "nightly-report") == "2026-02-01T14:40:00Z"
    assert next_in_utc("H H(0-5) H * ?", after, "nightly-report") == "2026-02-20T02:40:00Z"
    assert next_in_utc("H H/6 * * * *", after, "nightly-report") == "2026-02-01T00:04:28Z"


def test_hashed_minutes_are_spread_evenly() -> None:
    minutes = Counter(Cron.parse("H * * * *", hash_key=f"job-{n}").minutes for n in range(6_000))
    assert len(minutes) == 60
    assert max(minutes.values()) < 150


@pytest.mark.parametrize("key", ["a", "b", "c", "nightly-report", ""])
def test_hashed_ranges_and_steps_stay_in_their_range(key: str) -> None:
    def minutes(text: str) -> list[int]:
        mask = Cron.parse(f"{text} * * * *", hash_key=key).minutes
        return [minute for minute in range(60) if mask >> minute & 1]

    assert len(minutes("H")) == 1
    assert len(minutes("H(0-29)")) == 1
    assert minutes("H(0-29)")[0] < 30
    quarter = minutes("H/15")
    assert [minute - quarter[0] for minute in quarter] == [0, 15, 30, 45]
    tens = minutes("H(0-29)/10")
    assert [minute - tens[0] for minute in tens] == [0, 10, 20]
    assert minutes("H,0")[0] == 0


def test_hashed_minute_and_hour_are_independent() -> None:
    pairs = {
        (cron.minutes, cron.hours) for cron in (Cron.parse("H(0-23) H * * *", hash_key=str(n)) for n in range(500))
    }
    assert len(pairs) > 250


# --- Descriptions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("30 9 * * MON", "every Monday at 09:30"),
        ("30 9 * * 1-5", "every weekday at 09:30"),
        ("0 9,17 * * *", "every day at 09:00 and 17:00"),
        ("15 30 9 * * *", "every day at 09:30:15"),
        ("* * * * *", "every minute"),
        ("* * * * * *", "every second"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("*/15 * * * *", "every 15 minutes"),
        ("*/25 * * * *", "at minutes 0, 25 and 50 of every hour"),
        ("@hourly", "every hour"),
        ("0 */2 * * *", "every 2 hours"),
        ("5 */2 * * *", "at minute 5, every 2 hours"),
        ("5 * * * *", "at minute 5 of every hour"),
        ("*/5 9-17 * * 1-5", "every 5 minutes from 09:00 to 17:59, every weekday"),
        ("7 * * * * *", "at second 7 of every minute"),
        ("@monthly", "on the 1st of every month at 00:00"),
        ("@yearly", "on the 1st of January at 00:00"),
        ("0 0 1-7 6,12 *", "on the 1st to 7th of June and December at 00:00"),
        ("0 0 L * *", "on the last day of every month at 00:00"),
        ("0 0 15W,LW * *", "on the weekday nearest the 15th and the last weekday of every month at 00:00"),
        ("0 0 L-3 * *", "on the day 3 days before the last of every month at 00:00"),
        ("0 0 ? * 5L", "the last Friday of the month at 00:00"),
        ("0 0 * * MON#2", "the second Monday of the month at 00:00"),
        ("0 0 * * 7#2", "the second Sunday of the month at 00:00"),
        ("0 0 * * 7L", "the last Sunday of the month at 00:00"),
        ("0 0 * * SUN,7", "every Sunday at 00:00"),
        ("0 0 * 1 SAT,SUN", "every Saturday and Sunday in January at 00:00"),
        ("0 0 13 * FRI", "on the 13th of every month or every Friday at 00:00"),
        ("0 0 * * MON/2", "every Monday, Wednesday and Friday at 00:00"),
        ("0 0 29 2 */7", "every Sunday that is the 29th of February at 00:00"),
        ("*/7 1,5,9 * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56, in hours 1, 5 and 9"),
    ],
)
def test_an_expression_is_described_in_words(expression: str, words: str) -> None:
    assert Cron.parse(expression).describe() == words


# --- Zones ----------------------------------------------------------------------------------------------------------


def test_a_known_zone_is_loaded_once() -> None:
    assert load_zone("Europe/Paris") is load_zone("Europe/Paris")
    assert load_zone("UTC").key == "UTC"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("", "for example UTC or Europe/Paris"),
        ("Europe/Pariss", "did you mean Europe/Paris"),
        ("europe/paris", "did you mean Europe/Paris"),
        ("Tokyo", "did you mean Asia/Tokyo"),
        ("oslo", "did you mean Europe/Oslo?"),
        ("Norway/Oslo", "did you mean Europe/Oslo?"),
        ("New York", "did you mean America/New_York?"),
        ("West", "did you mean Australia/West or Brazil/West?"),
        ("../../etc/passwd", ""),
        ("/etc/localtime", ""),
        ("Europe/../Europe/Paris", ""),
        ("America", ""),
        ("localtime", ""),
        ("right/Europe/Paris", ""),
        ("Europe/Paris\0", ""),
        ("x" * 100_000, ""),
    ],
)
def test_an_unknown_zone_is_rejected_with_suggestions(name: str, hint: str) -> None:
    with pytest.raises(Invalid) as refused:
        load_zone(name, "zone")
    assert refused.value.field == "zone"
    assert refused.value.hint.startswith(hint)
    assert len(str(refused.value)) < 300


def test_an_unknown_zone_gets_three_suggestions_at_most() -> None:
    with pytest.raises(Invalid) as refused:
        load_zone("America/Argentina/San")
    assert refused.value.hint.count(" or ") == 2


def test_an_unknown_zone_is_shown_up_to_its_first_64_characters() -> None:
    with pytest.raises(Invalid) as refused:
        load_zone("x" * 65, "zone")
    assert refused.value.reason == f"'{'x' * 64}' is not a known time zone"


GAP, FOLD = (at(f"2026-{day}T01:00Z") // SECOND for day in ("03-29", "10-25"))
#: A fold of Adelaide whose repeated hour reaches beyond a multiple of 2²¹ seconds, where segments are cut.
ADELAIDE, ADELAIDE_CUT = 1_459_614_600, 696 << 21
#: Clocks of Recife that went forward, and back after a week, with a cut between.
FORWARD, RECIFE_CUT, BACK = 970_974_000, 463 << 21, 971_575_200


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("Europe/Paris", Segment(GAP, 847 << 21, 7_200, GAP + 3_600, GAP + 7_200)),
        ("Europe/Paris", Segment(FOLD, 855 << 21, 3_600, FOLD + 3_600, FOLD + 7_200)),
        ("Europe/Paris", Segment(850 << 21, 851 << 21, 7_200, (850 << 21) + 7_200, (850 << 21) + 7_200)),
        ("Australia/Adelaide", Segment(ADELAIDE, ADELAIDE_CUT, 34_200, ADELAIDE + 34_200, ADELAIDE + 37_800)),
        (
            "Australia/Adelaide",
            Segment(ADELAIDE_CUT, 697 << 21, 34_200, ADELAIDE_CUT + 34_200, ADELAIDE + 37_800),
        ),
        ("America/Recife", Segment(FORWARD, RECIFE_CUT, -7_200, FORWARD - 10_800, FORWARD - 7_200)),
        ("America/Recife", Segment(RECIFE_CUT, BACK, -7_200, RECIFE_CUT - 7_200, RECIFE_CUT - 7_200)),
        ("America/Recife", Segment(BACK, 464 << 21, -10_800, BACK - 10_800, BACK - 7_200)),
    ],
)
def test_a_segment_knows_the_wall_times_that_its_start_skips_or_repeats(zone: str, expected: Segment) -> None:
    for second in (expected.start, expected.start + 1, expected.end - 1):
        assert segment_at(ZoneInfo(zone), second) == expected
    assert segment_at(ZoneInfo(zone), expected.start - 1).end == expected.start
    assert segment_at(ZoneInfo(zone), expected.end).start == expected.end
