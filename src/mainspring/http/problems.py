"""Problem details (RFC 9457) for errors, never with a traceback or SQL."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from mainspring.core.model.base.decode_errors import explain_decode_error
from mainspring.core.model.base.errors import (
    Conflict,
    Fenced,
    Invalid,
    MainspringError,
    NotFound,
    StoreDamaged,
    StoreUnavailable,
)
from mainspring.core.model.base.field_names import explain_names, path_as_written, translate
from mainspring.core.model.base.repeated_keys import find_repeated_key
from mainspring.core.ports.blobs import BlobsUnavailable
from mainspring.http.problem_types import find_type

MEDIA_TYPE = "application/problem+json"
#: Field names of the core, and the names that callers use.
_FIELDS = {
    "expression": "cronExpression",
    "start": "scheduleTime",
    "at": "scheduleTime",
    "end": "endTime",
    "startBy": "startWithin",
}


class Problem(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Why a request was not done."""

    title: str
    status: int
    detail: str = ""
    #: The field or parameter that is wrong, as the caller wrote it.
    field: str = ""
    #: A correct value or the next step.
    hint: str = ""
    existing_id: Annotated[
        str, msgspec.Meta(description="The job or run that the request conflicts with, if there is one.")
    ] = ""
    type: Annotated[
        str,
        msgspec.Meta(
            description="Stable. Where the problem is described, relative to the root of the API.",
            examples=["/docs/problems#not-found"],
        ),
    ] = ""

    def __post_init__(self) -> None:
        if not self.type:
            msgspec.structs.force_setattr(self, "type", find_type(self.title))


class RequestError(MainspringError):
    """A request that is refused by its form or its sender, before anything is looked up."""

    def __init__(self, status: int, title: str, detail: str = "", *, hint: str = "", retry_after: int = 0) -> None:
        super().__init__(detail or title)
        self.problem = Problem(title=title, status=status, detail=detail, hint=hint)
        self.retry_after = retry_after


class ObjectNotFound(NotFound):
    """The error for a missing object and for an object of another tenant, identical byte for byte."""

    def __init__(self) -> None:
        super().__init__("there is no such object, or it is not yours")


class UnknownPath(NotFound):
    """No operation and no page has this path."""

    def __init__(self, path: str, known: Iterable[str] = ()) -> None:
        super().__init__(f"there is nothing at the path {path[:100]}")
        close = difflib.get_close_matches(path[:100], list(known), 1, cutoff=0.8)
        self.hint = f"did you mean `{close[0]}`? `/docs` has every path" if close else "`/docs` has every path"


class RequestFieldError(Invalid):
    """An error whose field has the caller's name already and needs no translation."""


def build_problem(error: Exception) -> tuple[Problem, dict[str, str]]:
    """Return the problem and the headers for an error.

    An unknown error is an internal one, and its details stay hidden.
    """
    match error:
        case RequestError():
            headers = {"retry-after": str(error.retry_after)} if error.retry_after else {}
            return error.problem, headers
        case Invalid():
            field = error.field if isinstance(error, RequestFieldError) else _FIELDS.get(error.field, error.field)
            return (
                Problem(
                    title="Bad request",
                    status=400,
                    detail=f"{field}: {error.reason}",
                    field=field,
                    hint=error.hint,
                ),
                {},
            )
        case UnknownPath():
            return Problem(title="Unknown path", status=404, detail=str(error), hint=error.hint), {}
        case NotFound():
            return Problem(title="Not found", status=404, detail=str(error)), {}
        case Conflict():
            return Problem(title="Conflict", status=409, detail=str(error), existing_id=error.existing), {}
        case Fenced():
            return (
                Problem(
                    title="Fenced",
                    status=409,
                    detail=str(error),
                    hint="somebody else has this run now; stop working on it",
                ),
                {},
            )
        case StoreDamaged():
            return Problem(title="Store damaged", status=500, detail=str(error), hint="mainspring doctor"), {}
        case StoreUnavailable():
            return (
                Problem(
                    title="Store unavailable",
                    status=503,
                    detail="the store did not answer; what was asked may or may not have happened",
                    hint="ask again, with the same idempotency key if you submit",
                ),
                {"retry-after": "1"},
            )
        case BlobsUnavailable():
            return (
                Problem(
                    title="Logs unavailable",
                    status=503,
                    detail="where logs are kept did not answer",
                    hint="ask again later; mainspring doctor says more",
                ),
                {"retry-after": "5"},
            )
        case _:
            return Problem(title="Internal error", status=500, detail="this is our fault; the log says more"), {}


def explain_decoding_error(error: msgspec.MsgspecError, where: str, kind: Any = None, data: bytes = b"") -> Invalid:
    """Explain why ``data`` cannot be decoded. ``where`` names the field if the whole value is wrong."""
    found = explain_decode_error(error, kind, data)
    return RequestFieldError(found.field or where, found.reason, found.hint)


def restore_names(error: Invalid, written: Mapping[str, str]) -> Invalid:
    """Return the error with its field under the name that the body uses for it."""
    if not written:
        return error
    field = error.field if isinstance(error, RequestFieldError) else _FIELDS.get(error.field, error.field)
    return RequestFieldError(path_as_written(field, written), error.reason, error.hint)


def _check_repeated(key: str) -> None:
    if key:
        raise RequestFieldError(key, "is given twice", "keep one of them")


def decode(
    data: bytes, kind: Any, decoder: "msgspec.json.Decoder[Any]", written: "dict[str, str] | None" = None
) -> Any:
    """Decode a JSON body strictly, and refuse a key that is given twice.

    Fields may have other names; ``written`` receives the names that were used.
    A body that names its fields as ``kind`` does is decoded once and never translated.
    """
    if not data:
        raise Invalid("body", "is empty", f"a JSON object ({getattr(kind, '__name__', 'JSON')})")
    try:
        if not data.isascii():
            # Raw fields are passed on undecoded, so their encoding is checked only here.
            data.decode()
        try:
            found = decoder.decode(data)
            _check_repeated(find_repeated_key(data, found))
            return found
        except msgspec.ValidationError:
            data, names, unknown, repeated, twice = translate(data, decoder.type)
            _check_repeated(twice)
            if unknown or repeated:
                problem = explain_names(repeated, unknown)
                raise RequestFieldError(problem.field, problem.reason, problem.hint) from None
            try:
                return decoder.decode(data)
            except msgspec.ValidationError as error:
                raise restore_names(explain_decoding_error(error, "body", decoder.type, data), names) from None
            finally:
                if written is not None:
                    written |= names
    except msgspec.DecodeError as error:
        raise explain_decoding_error(error, "body", decoder.type, data) from None
    except UnicodeDecodeError:
        raise Invalid("body", "is not UTF-8") from None
    except RecursionError:
        raise Invalid("body", "is nested too deeply") from None
