"""The converter of CronJobs against the rules of robfig/cron v3, which is the parser of Kubernetes."""

import random
from datetime import date, timedelta

import pytest

from mainspring.core.model.schedules.cron import Cron
from mainspring.core.model.schedules.cron.wall import DAY_SECONDS
from mainspring.features.schedules.commands.converters.conversion import UntranslatableError
from mainspring.features.schedules.commands.converters.kubernetes_schedules import translate_cron, translate_schedule

STAR_BIT = 1 << 63
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
BOUNDS: list[tuple[int, int, dict[str, int]]] = [
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, {name: number for number, name in enumerate(MONTHS, 1)}),
    (0, 6, {name: number for number, name in enumerate(WEEKDAYS)}),
]
FIRST_DAY = date(2026, 1, 1)
#: Two years, a leap day among them: (day of month, month, weekday) of each.
TWO_YEARS = [FIRST_DAY + timedelta(days) for days in range(2 * 365)] + [date(2028, 2, 29)]


class Refused(Exception):
    """robfig/cron refuses the expression."""


def robfig_bits(field: str, low: int, high: int, names: dict[str, int]) -> int:
    """getField and getRange of robfig/cron v3, line by line."""
    mask = 0
    for expression in filter(None, field.split(",")):
        range_and_step = expression.split("/")
        low_and_high = range_and_step[0].split("-")
        extra = 0
        if low_and_high[0] in ("*", "?"):
            start, end, extra = low, high, STAR_BIT
        else:
            start = robfig_number(low_and_high[0], names)
            if len(low_and_high) > 2:
                raise Refused
            end = robfig_number(low_and_high[1], names) if len(low_and_high) == 2 else start
        step = 1
        if len(range_and_step) > 2:
            raise Refused
        if len(range_and_step) == 2:
            step = robfig_number(range_and_step[1], {})
            if len(low_and_high) == 1:
                end = high
            if step > 1:
                extra = 0
        if start < low or end > high or start > end or step == 0:
            raise Refused
        mask |= sum(1 << value for value in range(start, end + 1, step)) | extra
    return mask


def robfig_number(text: str, names: dict[str, int]) -> int:
    if text.upper() in names:
        return names[text.upper()]
    if not text.isdecimal():
        raise Refused
    return int(text)


def robfig_fires(expression: str) -> tuple[list[date], int, int]:
    """The days of two years on which it fires, and the masks of its minutes and hours."""
    fields = expression.split()
    if len(fields) != 5:
        raise Refused
    minute, hour, day, month, weekday = (
        robfig_bits(field, *bounds) for field, bounds in zip(fields, BOUNDS, strict=True)
    )
    both = (day | weekday) & STAR_BIT
    days = []
    for moment in TWO_YEARS:
        of_month = day >> moment.day & 1
        of_week = weekday >> moment.isoweekday() % 7 & 1
        if month >> moment.month & 1 and (of_month and of_week if both else of_month or of_week):
            days.append(moment)
    return days, minute & ~STAR_BIT, hour & ~STAR_BIT


def our_fires(expression: str) -> tuple[list[date], int, int]:
    cron = Cron.parse(expression)
    days = [
        moment
        for moment in TWO_YEARS
        if cron.wall_from(wall := (moment - date(1970, 1, 1)).days * DAY_SECONDS) < wall + DAY_SECONDS
    ]
    return days, cron.minutes, cron.hours


def random_item(numbers: random.Random, low: int, high: int, names: dict[str, int]) -> str:
    def value() -> str:
        if names and numbers.random() < 0.3:
            return numbers.choice(list(names)).lower() if numbers.random() < 0.5 else numbers.choice(list(names))
        return str(numbers.randint(low, high))

    kind = numbers.random()
    if kind < 0.3:
        body = numbers.choice(["*", "*", "*", "?"])
    elif kind < 0.7:
        body = value()
    else:
        first = numbers.randint(low, high)
        body = f"{first}-{numbers.randint(first, high)}"
    if numbers.random() < 0.35:
        body += f"/{numbers.choice([1, 1, 2, 2, 3, 5, 7, 15, 40])}"
    return body


def random_expression(numbers: random.Random) -> str:
    fields = []
    for place, bounds in enumerate(BOUNDS):
        count = numbers.choice([1, 1, 1, 2, 3]) if place in (2, 4) else 1
        fields.append(",".join(random_item(numbers, *bounds) for _ in range(count)))
    if numbers.random() < 0.05:
        fields[numbers.randrange(5)] = numbers.choice(
            ["L", "5L", "5#2", "15W", "H", "7", "60", "1-2-3", "*/0", ",", "5-3"]
        )
    return " ".join(fields)


@pytest.mark.parametrize("seed", range(8))
def test_a_converted_schedule_fires_as_it_does_in_kubernetes(seed: int) -> None:
    numbers = random.Random(seed)
    converted = 0
    for _ in range(500):
        expression = random_expression(numbers)
        try:
            expected = robfig_fires(expression)
        except Refused:
            expected = ([], 0, 0)
        try:
            translated = translate_cron(expression)
        except UntranslatableError:
            days, minutes, hours = expected
            assert not (days and minutes and hours), expression
        else:
            assert our_fires(translated) == expected, (expression, translated)
            converted += 1
    assert converted > 400


@pytest.mark.parametrize(
    ("expression", "converted"),
    [
        ("0 9 */1 * 1-5", "0 9 */1 * 1-5"),
        ("0 0 1 * */1", "0 0 1 * */1"),
        ("0 0 15,* * MON", "0 0 * * 1"),
        ("0 3 */2 * 1", "0 3 1-31/2 * 1"),
        ("0 0 ?/1 * 2", "0 0 * * 2"),
        ("0 9 * * MON-FRI", "0 9 * * MON-FRI"),
        ("*/5 * ? * ?", "*/5 * ? * ?"),
        ("*/90 1 * * *", "0 1 * * *"),
        ("0 0 13 * FRI", "0 0 13 * FRI"),
        ("0 0 * * MON/2", "0 0 * * MON/2"),
    ],
)
def test_day_fields_are_rewritten_only_where_their_meaning_differs(expression: str, converted: str) -> None:
    assert translate_cron(expression) == converted
    assert our_fires(converted) == robfig_fires(expression)


@pytest.mark.parametrize(
    "schedule",
    [
        *("0 0 L * *", "0 0 * * 5#2", "H H * * *", "0 0 * * 7", "0 0 0 * * *", "1-2-3 * * * *", "* * * *"),
        *("@reboot", "@Daily", "@every 1d", "@every x", "0 0 30 2 *", "0 0 , * *"),
    ],
)
def test_a_schedule_that_kubernetes_refuses_or_never_fires_is_not_converted(schedule: str) -> None:
    with pytest.raises(UntranslatableError):
        translate_schedule(schedule)


@pytest.mark.parametrize(
    ("written", "every"), [("1h30m", "1h30m"), ("1.5s", "1s"), ("10ms", "1s"), ("1.5h", "1h30m"), ("90s", "1m30s")]
)
def test_an_interval_keeps_whole_seconds_as_in_kubernetes(written: str, every: str) -> None:
    assert translate_schedule(f"@every {written}") == {"every": every}
