"""The parser of expressions: six fields, each converted into a bit mask, or a refusal that names part and reason."""

import hashlib
from typing import NamedTuple

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.schedules.cron.words import MONTH_WORDS, WEEKDAY_WORDS

MAX_LENGTH = 200


class Field(NamedTuple):
    name: str
    low: int
    high: int
    #: The number of different values; Sunday has two numbers.
    size: int
    #: The last value that ``H`` takes: every month has a 28th, and Sunday must be as likely as the other days.
    hash_high: int
    names: dict[str, int]


SECOND_FIELD = Field("second", 0, 59, 60, 59, {})
MINUTE_FIELD = Field("minute", 0, 59, 60, 59, {})
HOUR_FIELD = Field("hour", 0, 23, 24, 23, {})
_DAY_FIELD = Field("day of month", 1, 31, 31, 28, {})
MONTH_FIELD = Field("month", 1, 12, 12, 12, {word[:3].upper(): n for n, word in enumerate(MONTH_WORDS) if n})
_WEEKDAY_FIELD = Field("day of week", 0, 7, 7, 6, {word[:3].upper(): n for n, word in enumerate(WEEKDAY_WORDS)})

_MACROS = {
    "@HOURLY": "0 * * * *",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0",
    "@MONTHLY": "0 0 1 * *",
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
}


class CronParser:
    """Parses one expression from left to right without backtracking. Refusals name the caller's field."""

    __slots__ = ("_field", "_hash_key")

    def __init__(self, field: str, hash_key: str) -> None:
        self._field = field
        self._hash_key = hash_key

    def refusal(self, part: str, why: str, hint: str = "") -> Invalid:
        return Invalid(self._field, f"{part}: {why}" if part else why, hint)

    def split(self, expression: str) -> list[str]:
        """Return the six fields in upper case."""
        if len(expression) > MAX_LENGTH:
            raise self.refusal("", f"is longer than {MAX_LENGTH} characters")
        if not expression.isascii():
            raise self.refusal("", "has a character that is not ASCII")
        text = expression.upper()
        if "=" in text:
            raise self.refusal(
                "", "a time zone or variable inside the expression is not allowed", "set the zone beside it"
            )
        fields = text.split()
        if fields and fields[0].startswith("@"):
            fields = self._macro(" ".join(fields))
        if len(fields) == 5:
            fields.insert(0, "0")
        if len(fields) != 6:
            raise self.refusal(
                "", f"has {len(fields)} fields", "5, or 6 with seconds first; for example 30 9 * * MON-FRI"
            )
        return fields

    def values(self, field: Field, text: str) -> int:
        """Parse a comma-separated list of terms."""
        values = 0
        for term in text.split(","):
            values |= self._term(field, term)
        return values

    def days(self, text: str) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Parse the day of month: plain days, days before the last, weekdays nearest to a day."""
        if text == "?":
            text = "*"
        days, before_last, nearest = 0, [], []
        for term in text.split(","):
            if term == "LW":
                nearest.append(0)
            elif term == "L":
                before_last.append(0)
            elif term.startswith("L-"):
                before = self._number(_DAY_FIELD, term[2:], term)
                if before > 30:
                    raise self.refusal(_DAY_FIELD.name, f"no month has {term!r}", "L-1 to L-30")
                before_last.append(before)
            elif term.endswith("W"):
                nearest.append(self._value(_DAY_FIELD, term[:-1], term))
            else:
                days |= self._term(_DAY_FIELD, term)
        return days, tuple(before_last), tuple(nearest)

    def weekdays(self, text: str) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Parse the day of week: plain weekdays, and those with a number in the month."""
        if text == "?":
            text = "*"
        weekdays, numbered = 0, []
        for term in text.split(","):
            if term == "L":
                raise self.refusal(_WEEKDAY_FIELD.name, "L needs a day before it", "5L is the last Friday of the month")
            if "#" in term:
                weekday, _, number = term.partition("#")
                if number not in ("1", "2", "3", "4", "5"):
                    raise self.refusal(
                        _WEEKDAY_FIELD.name, f"{term!r} does not end in #1 to #5", "5#2 is the second Friday"
                    )
                numbered.append((self._value(_WEEKDAY_FIELD, weekday, term) % 7, int(number)))
            elif term.endswith("L"):
                numbered.append((self._value(_WEEKDAY_FIELD, term[:-1], term) % 7, 0))
            else:
                weekdays |= self._term(_WEEKDAY_FIELD, term)
        return (weekdays | weekdays >> 7) & 0b1111111, tuple(numbered)

    def _macro(self, name: str) -> list[str]:
        if name == "@REBOOT":
            raise self.refusal("", "@reboot is not a time", "submit an immediate job when the machine starts")
        if name not in _MACROS:
            raise self.refusal("", f"{name[:40].lower()!r} is not a known macro", ", ".join(_MACROS).lower())
        return _MACROS[name].split()

    def _term(self, field: Field, term: str) -> int:
        body, slash, step_text = term.partition("/")
        step = self._step(field, step_text, term) if slash else 1
        if body == "*":
            low, high = field.low, field.high
        elif body.startswith("H"):
            low, high = self._hashed(field, body, step if slash else 0)
        else:
            low, high = self._range(field, body, term)
            if slash and "-" not in body:
                # Up to Saturday, the end of the week: Sunday's second number is not a further step.
                high = max(low, field.low + field.size - 1)
        values = 0
        for value in range(low, high + 1, step):
            values |= 1 << value
        return values

    def _range(self, field: Field, body: str, term: str) -> tuple[int, int]:
        first, dash, last = body.partition("-")
        low = self._value(field, first, term)
        if not dash:
            return low, low
        high = self._value(field, last, term)
        if high < low and last == "SUN":
            high = 7
        if high < low:
            hint = f"write {low}-{field.high},{field.low}-{high}"
            raise self.refusal(field.name, f"the range {body!r} is reversed", hint)
        return low, high

    def _step(self, field: Field, text: str, term: str) -> int:
        step = self._number(field, text, term)
        if step == 0:
            raise self.refusal(field.name, "step 0 is not allowed", "a step is 1 or more")
        if step > field.size:
            hint = "steps start again with each field; use an interval for other periods"
            raise self.refusal(field.name, f"step {step} is larger than the field, which has {field.size} values", hint)
        return step

    def _hashed(self, field: Field, body: str, step: int) -> tuple[int, int]:
        """Resolve ``H`` or ``H(low-high)``: a single value, or with a step its first value and upper bound."""
        low, high = field.low, field.hash_high
        if body != "H":
            inside = body[2:-1]
            if not (body.startswith("H(") and body.endswith(")") and "-" in inside):
                raise self.refusal(
                    field.name, f"{body!r} is not understood", "for example H, H/15, H(0-29) or H(0-29)/10"
                )
            low, high = self._range(field, inside, body)
            if field is _DAY_FIELD and high > field.hash_high:
                raise self.refusal(field.name, f"{body!r} may be a day that not every month has", "H(1-28)")
        # The name of the field is in the hash so that minute and hour are independent. Changing any of this moves the
        # fires of every schedule that has an H.
        digest = hashlib.sha256(f"{field.name}\0{self._hash_key}".encode("utf-8", "surrogatepass")).digest()
        choices = high - low + 1
        low += int.from_bytes(digest[:8], "big") % (min(step, choices) if step else choices)
        return low, high if step else low

    def _value(self, field: Field, text: str, term: str) -> int:
        if (named := field.names.get(text)) is not None:
            return named
        value = self._number(field, text, term)
        if not field.low <= value <= field.high:
            raise self.refusal(field.name, f"{value} is out of range", f"{field.low} to {field.high}")
        return value

    def _number(self, field: Field, text: str, term: str) -> int:
        if text.isascii() and text.isdecimal() and len(text) <= 4:
            return int(text)
        if not term:
            raise self.refusal(field.name, "an item of the list is empty")
        if "?" in term:
            raise self.refusal(
                field.name, "? is not allowed here", "it stands alone as day of month or day of week; use *"
            )
        hint = f"{field.low} to {field.high}"
        if field.names:
            names = list(field.names)
            hint += f", or {names[0]} to {names[-1]}"
        raise self.refusal(field.name, f"{term[:40]!r} is not understood", hint)
