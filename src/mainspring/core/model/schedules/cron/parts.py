"""An expression field by field: its text and its meaning."""

import msgspec

from mainspring.core.model.schedules.cron import words
from mainspring.core.model.schedules.cron.expression import Cron
from mainspring.core.model.schedules.cron.reading import CronParser

_FIELDS = (
    ("second", words.describe_second),
    ("minute", words.describe_minute),
    ("hour", words.describe_hour),
    ("day of month", words.describe_day),
    ("month", words.describe_month),
    ("day of week", words.describe_weekday),
)


class FieldRange(msgspec.Struct, frozen=True):
    field: str
    written: str
    means: str


def parts(cron: Cron) -> list[FieldRange]:
    """Return the fields in order. The second is included only if it is written; a macro such as ``@daily`` has five."""
    written = CronParser("cron", "").split(cron.expression)
    first = 0 if len(cron.expression.split()) == 6 else 1
    return [
        FieldRange(name, text, describe(cron))
        for (name, describe), text in zip(_FIELDS[first:], written[first:], strict=True)
    ]
