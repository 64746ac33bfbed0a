"""Options for pauses: their end and their reason."""

import re
from datetime import datetime, time, timedelta
from typing import Annotated, TypeAlias

import msgspec
import typer

from mainspring.cli.client.target import Raw, decode_answer
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import (
    Instant,
    from_datetime,
    isoformat,
    parse_duration,
    parse_instant,
    to_datetime,
)

_ON_THE_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")
_DURATION = re.compile(r"\s*[0-9.]+\s*[a-z]", re.IGNORECASE)

Until: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--until",
        help="Resume at this time (18:00 local time, 2030-12-31T18:00:00Z) or after this duration (2h).",
        show_default=False,
    ),
]
Why: TypeAlias = Annotated[
    str, typer.Option("--why", help="Record a reason, which others can see.", show_default=False)
]


class _PauseAnswer(msgspec.Struct, rename="camel"):
    resume_at: str | None = None


def build_pause(until: str | None, why: str, now: Instant) -> dict[str, object]:
    """Return the body of a pause request."""
    end = None if until is None else isoformat(parse_moment(until, now))
    return {name: value for name, value in (("until", end), ("why", why)) if value}


def format_until(answer: Raw) -> str:
    """Return the end of a pause in words. Empty if it has none."""
    end = decode_answer(answer, _PauseAnswer).resume_at
    return "" if end is None else f" until {end}"


def parse_moment(text: str, now: Instant) -> Instant:
    """Parse a time: a timestamp, the next time that the local clock shows, or a duration from now."""
    found = _ON_THE_CLOCK.fullmatch(text.strip())
    if found is None:
        return now + parse_duration(text, "--until") if _DURATION.match(text) else parse_instant(text, "--until")
    here = to_datetime(now).astimezone()
    hour, minute, second = (int(part or 0) for part in found.groups())
    try:
        clock = time(hour, minute, second)
    except ValueError:
        raise Invalid("--until", f"{text!r:.40} is not a time", "for example 18:00") from None
    day = here.date() if clock > here.time() else here.date() + timedelta(days=1)
    # Without a zone it is a local time, even if the clocks change in between.
    return from_datetime(datetime.combine(day, clock).astimezone(), "--until")
