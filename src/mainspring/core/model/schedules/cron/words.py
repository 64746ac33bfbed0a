"""Descriptions of expressions in English."""

from mainspring.core.model.schedules.cron.wall import WallTimes, bits

MONTH_WORDS = (
    "",
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAY_WORDS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_NUMBER_WORDS = ("last", "first", "second", "third", "fourth", "fifth")


def describe(times: WallTimes) -> str:
    """Describe the meaning of an expression, independent of its spelling."""
    clock, exact = _time_words(times)
    days = _day_words(times)
    if exact:
        return f"{days} {clock}"
    return clock if days == "every day" else f"{clock}, {days}"


def describe_second(times: WallTimes) -> str:
    return _values_words(bits(times.seconds), 60, "second")


def describe_minute(times: WallTimes) -> str:
    return _values_words(bits(times.minutes), 60, "minute")


def describe_hour(times: WallTimes) -> str:
    return _values_words(bits(times.hours), 24, "hour")


def describe_day(times: WallTimes) -> str:
    return _day_of_month_words(times) or "every day"


def describe_month(times: WallTimes) -> str:
    months = bits(times.months)
    return "every month" if len(months) == 12 else _join([MONTH_WORDS[month] for month in months])


def describe_weekday(times: WallTimes) -> str:
    return _weekday_words(times) or "every day of the week"


def _values_words(values: list[int], size: int, unit: str) -> str:
    return _every(values, size, unit) or _listed(unit, values)


def _time_words(times: WallTimes) -> tuple[str, bool]:
    """Return the words for the time of day, and whether they are a short list of exact times."""
    seconds, minutes, hours = bits(times.seconds), bits(times.minutes), bits(times.hours)
    if len(seconds) * len(minutes) * len(hours) <= 6:
        tail = seconds != [0]
        exact = [f"{h:02}:{m:02}" + f":{s:02}" * tail for h in hours for m in minutes for s in seconds]
        return "at " + _join(exact), True
    every_hour = _every(hours, 24, "hour")
    every_minute = _every(minutes, 60, "minute")
    minute_words = every_minute or _listed("at minute", minutes)
    if seconds == [0]:
        if minutes == [0] and every_hour:
            return every_hour, False
        words = minute_words
    else:
        words = _every(seconds, 60, "second") or _listed("at second", seconds)
        if len(minutes) < 60:
            words = f"{words}, {minute_words}"
        elif not words.startswith("every"):
            words += " of every minute"
    if len(hours) == 24:
        return words if every_minute else f"{words} of every hour", False
    if hours[-1] - hours[0] == len(hours) - 1:
        return f"{words} from {hours[0]:02}:00 to {hours[-1]:02}:59", False
    return f"{words}, {every_hour or _listed('in hour', hours)}", False


def _day_words(times: WallTimes) -> str:
    months = [MONTH_WORDS[month] for month in bits(times.months)]
    of_months = "every month" if len(months) == 12 else _join(months)
    in_months = "" if len(months) == 12 else f" in {of_months}"
    weekdays = _weekday_words(times)
    numbers = _day_of_month_words(times)
    if times.either_day and not (numbers and weekdays):
        # One of the two lists every day, and either is enough.
        return "every day" + in_months
    if numbers and weekdays:
        if times.either_day:
            return f"on {numbers} of {of_months} or {weekdays}{in_months}"
        return f"{weekdays} that is {numbers} of {of_months}"
    if numbers:
        return f"on {numbers} of {of_months}"
    return (weekdays or "every day") + in_months


def _weekday_words(times: WallTimes) -> str:
    """Return the days of week in words; empty if all match."""
    weekdays = bits(times.weekdays)
    if len(weekdays) == 7:
        return ""
    words = []
    if weekdays == [1, 2, 3, 4, 5]:
        words.append("every weekday")
    elif weekdays:
        # The week begins on Monday, as in most calendars and ISO 8601.
        ordered = sorted(weekdays, key=lambda weekday: (weekday - 1) % 7)
        words.append("every " + _join([WEEKDAY_WORDS[weekday] for weekday in ordered]))
    for weekday, number in times.numbered_weekdays:
        words.append(f"the {_NUMBER_WORDS[number]} {WEEKDAY_WORDS[weekday]} of the month")
    return _join(words)


def _day_of_month_words(times: WallTimes) -> str:
    """Return the days of month in words; empty if all match."""
    days = bits(times.days)
    if len(days) == 31:
        return ""
    if len(days) > 2 and days[-1] - days[0] == len(days) - 1:
        words = [f"the {_ordinal(days[0])} to {_ordinal(days[-1])}"]
    else:
        words = [f"the {_ordinal(day)}" for day in days]
    for target in times.nearest_weekdays:
        words.append(f"the weekday nearest the {_ordinal(target)}" if target else "the last weekday")
    for before in times.days_before_last:
        plural = "s" if before > 1 else ""
        words.append(f"the day {before} day{plural} before the last" if before else "the last day")
    return _join(words)


def _join(words: list[str]) -> str:
    *rest, last = words or [""]
    return f"{', '.join(rest)} and {last}" if rest else last


def _listed(unit: str, values: list[int]) -> str:
    if len(values) > 2 and values[-1] - values[0] == len(values) - 1:
        return f"{unit}s {values[0]} to {values[-1]}"
    return f"{unit}{'s' * (len(values) > 1)} {_join([str(value) for value in values])}"


def _every(values: list[int], size: int, unit: str) -> str:
    """Return ``every 15 minutes`` if the values are spread evenly over the whole field from 0 on, else nothing."""
    step = size // len(values)
    if len(values) < 2 or values != list(range(0, size, step)) or size % step:
        return ""
    return f"every {unit}" if step == 1 else f"every {step} {unit}s"


def _ordinal(number: int) -> str:
    suffix = "th" if 10 < number < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
