"""Types that several resources share."""

from typing import Annotated, Generic, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Meta

from mainspring.core.model.base.decode_errors import PATTERNS
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import SessionId, is_id, made_at
from mainspring.core.model.base.instant import (
    Instant,
    Micros,
    check_ahead,
    format_duration,
    isoformat,
    parse_duration,
    parse_instant,
)
from mainspring.core.model.cluster.labels import MAX_LABELS
from mainspring.core.model.runs.names import MAX_NAME, MAX_TAGS
from mainspring.http.docs.portable import SHORTHAND
from mainspring.http.problems import ObjectNotFound, RequestFieldError

T = TypeVar("T")
#: The largest number of ids in the parameter `ids`.
_MOST_IDS = 100


def build_pattern(pattern: str, words: str, hint: str) -> str:
    """Register an explanation for values that do not match the pattern, and return the pattern."""
    PATTERNS[repr(pattern)] = (words, hint)
    return pattern


_NO_NUL = build_pattern(r"^[^\x00]*$", "has a NUL character", "leave it out")

Id: TypeAlias = Annotated[str, Meta(description="Opaque.", examples=["019a8c4b6f2c70008042b1c2d3e4f506"])]
Time: TypeAlias = Annotated[
    str,
    Meta(
        pattern=build_pattern(
            r"^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:\d\d)$",
            "is not a time with a zone",
            "for example 2026-12-31T23:59:59Z",
        ),
        max_length=40,
        description="RFC 3339, with a zone.",
        examples=["2026-12-31T23:59:59Z"],
    ),
]
Day: TypeAlias = Annotated[
    str,
    Meta(
        pattern=build_pattern(r"^\d{4}-\d\d-\d\d$", "is not a day", "for example 2026-12-31"),
        description="A day of UTC.",
        examples=["2026-12-31"],
    ),
]
#: A duration as text in a request.
Words: TypeAlias = Annotated[
    str,
    Meta(
        pattern=build_pattern(
            r"^ *([0-9]{1,12}(\.[0-9]{1,6})?"
            r"|([0-9]{1,12}(\.[0-9]{1,6})? *(us|ms|s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?) *)+) *$",
            "is not a duration",
            'for example "30s" or "1h30m" in lower case, or a number of seconds',
        ),
        max_length=100,
        description="A duration, such as `30s` or `1h30m`. A number of seconds is accepted, too.",
        examples=["30s", "1h30m"],
    ),
]
Seconds: TypeAlias = Annotated[
    float, Meta(ge=0, le=10_000_000_000, description="A duration in seconds.", extra_json_schema=SHORTHAND)
]
Span: TypeAlias = Words | Seconds
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_NAME, pattern=_NO_NUL)]
#: Free text for people.
Text: TypeAlias = Annotated[str, Meta(max_length=1_000, pattern=_NO_NUL)]
Tags: TypeAlias = Annotated[tuple[Name, ...], Meta(max_length=MAX_TAGS)]
#: Labels of a worker, or labels that a run requires.
Labels: TypeAlias = Annotated[
    dict[str, str],
    Meta(
        max_length=MAX_LABELS,
        description="Names and values of letters, digits and `. _ / : -`.",
        examples=[{"gpu": "a100"}],
    ),
]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=1_000, description="How many at most.")]
Ids: TypeAlias = Annotated[
    str, Meta(max_length=4_000, description="Only these, with commas, and 100 at most. No other filter goes with it.")
]
Cursor: TypeAlias = Annotated[str, Meta(max_length=200, description="`nextCursor` of the page before.")]


class Wire(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """A response body."""


#: The classes in ``core.model.runs.retention.CLASSES``.
RetentionName = Literal["standard", "short", "long", "audit"]


class Request(msgspec.Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A request body. Unknown fields are refused by name."""


class PauseIn(Request):
    """How long a pause lasts, and why."""

    until: Time | None = None
    """When the pause ends by itself; without it the pause lasts until someone resumes."""
    why: Text = ""


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True, rename="camel"):
    """A page of a list. Only the last one has fewer items than asked for, unless `searchedBackTo` is given."""

    items: list[T]
    next_cursor: str | None = None
    searched_back_to: (
        Annotated[str, Meta(description="The search took too long and stopped here. `nextCursor` continues it.")]
        | msgspec.UnsetType
    ) = msgspec.UNSET


def render_page(items: list[T], cursor: str | None, limit: int) -> Page[T]:
    """Build a page of a list by id. If it has too few items and a cursor, the search stopped at that cursor."""
    if cursor is None or len(items) >= limit:
        return Page(items=items, next_cursor=cursor)
    return Page(items=items, next_cursor=cursor, searched_back_to=isoformat(made_at(cursor)))


def format_time(instant: Instant | None) -> str | None:
    return None if instant is None else isoformat(instant)


def parse_time(text: str | None, field: str) -> Instant | None:
    if text is None:
        return None
    try:
        return parse_instant(text, field)
    except Invalid as error:
        raise RequestFieldError(error.field, error.reason, error.hint) from None


def end_of_pause(pause: PauseIn, now: Instant) -> Instant | None:
    until = parse_time(pause.until, "until")
    if until is not None:
        check_ahead(until, now, "until")
    return until


def parse_span(span: str | float, field: str) -> Micros:
    return parse_duration(span, field)


def split_words(micros: Micros | None) -> str | None:
    return None if micros is None else format_duration(micros)


def parse_id(text: str) -> str:
    """Return an id from a path. Text that is not an id is answered like a missing object."""
    if not is_id(text):
        raise ObjectNotFound
    return text


def parse_given_id(text: str, field: str) -> str:
    """Return an id from a request field."""
    if not is_id(text):
        raise Invalid(field, f"{text!r:.40} is not an id", "as it stands in an answer")
    return text


def parse_ids(query: Request, text: str) -> list[str]:
    """Parse the ids that a list is limited to, newest first."""
    for field in msgspec.structs.fields(query):
        if field.name not in ("ids", "limit") and getattr(query, field.name) is not None:
            raise Invalid("ids", f"contradicts {field.encode_name}", "one of them")
    chosen = {parse_given_id(word.strip(), "ids") for word in text.split(",")}
    if len(chosen) > _MOST_IDS:
        raise Invalid("ids", f"names {len(chosen)} ids", f"{_MOST_IDS} at most")
    return sorted(chosen, reverse=True)


def parse_session(text: str) -> SessionId:
    """Return the worker id from a path. Text that is not a number becomes 0, which no worker has."""
    return SessionId(int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0)


def parse_cursor(text: str | None) -> str | None:
    if text is None:
        return None
    if not is_id(text):
        raise Invalid("cursor", "is not one of ours", "leave it out to begin at the start")
    return text


def render_retention(name: str) -> RetentionName | msgspec.UnsetType:
    """Return the retention class in the form of a request."""
    return cast(RetentionName, name) if name else msgspec.UNSET


class PageQuery(Request):
    limit: Limit = 50
    cursor: Cursor | None = None
