"""The schedules file: recurring jobs kept next to the code, as YAML, JSON or TOML by its suffix.

An entry has the fields of ``POST /v1/jobs``, with the same names and meanings.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.repeated_keys import find_repeated_key
from mainspring.core.model.runs.names import check_payload
from mainspring.core.model.schedules.job import JobSpec
from mainspring.http.jobs.reading import build_spec, read_payload
from mainspring.http.problems import build_problem, decode, explain_decoding_error, restore_names
from mainspring.http.schemas.common import Request
from mainspring.http.schemas.jobs import JobFields, is_recurring

MAX_BYTES = 16 * 1024 * 1024
#: The names of an entry's fields.
FIELDS: tuple[str, ...] = JobFields.__struct_encode_fields__
#: A schedule and the payload of its runs, as an application declares them.
DeclaredSchedule = tuple[JobSpec, bytes]


class ScheduleFile(Request):
    """The content of a schedules file."""

    schedules: list[msgspec.Raw]


class Entry(msgspec.Struct, frozen=True):
    """One entry to write: the fields by their names in the file, and the comment lines above."""

    fields: Mapping[str, object]
    comments: Sequence[str] = ()


class _NamedEntry(msgspec.Struct):
    name: str


_entry_decoder = msgspec.json.Decoder(JobFields)
_file_decoder = msgspec.json.Decoder(ScheduleFile)


def read_file(path: Path) -> list[JobFields]:
    """Return the schedules of a file in order, all of them valid. An error names the file, the entry and the field.

    Fields that an entry omits stay unset, so that the options of its task apply.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Invalid(str(path), f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise Invalid(str(path), f"is larger than {MAX_BYTES // 1024 // 1024} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Invalid(str(path), "is not UTF-8") from None
    return _read_entries(text, path.suffix, str(path))


def read_text(text: str, suffix: str = ".yaml", where: str = "schedules") -> list[DeclaredSchedule]:
    """Return the schedules that a text declares. Fields that an entry omits get the general defaults."""
    return [(build_spec(fields), read_payload(fields)) for fields in _read_entries(text, suffix, where)]


def _read_entries(text: str, suffix: str, where: str) -> list[JobFields]:
    found = _parse(text, suffix, where)
    if not isinstance(found, dict):
        raise Invalid(where, "has no list of schedules", "begin the file with schedules:")
    try:
        entries = _file_decoder.decode(_encode(found, where)).schedules
    except msgspec.ValidationError as error:
        raise _add_place(where, explain_decoding_error(error, "schedules", ScheduleFile)) from None
    declared: list[JobFields] = []
    positions: dict[str, int] = {}
    for number, entry in enumerate(entries, 1):
        name = _read_name(entry)
        position = f"{where}, schedule {number}" + (f" ({name})" if name else "")
        try:
            fields = _check(bytes(entry))
        except Invalid as error:
            raise _add_place(position, error) from None
        name_key = str(fields.name)
        if name_key in positions:
            raise Invalid(f"{position}: name", f"is also the name of schedule {positions[name_key]}")
        positions[name_key] = number
        declared.append(fields)
    return declared


def check_entry(entry: bytes | msgspec.Raw | Mapping[str, object]) -> DeclaredSchedule:
    """Validate one entry, given as JSON or as an object. An error names the field."""
    fields = _check(_encode(entry, "schedule") if isinstance(entry, Mapping) else bytes(entry))
    return build_spec(fields), read_payload(fields)


def _check(data: bytes) -> JobFields:
    written: dict[str, str] = {}
    fields: JobFields = decode(data, JobFields, _entry_decoder, written)
    if not is_recurring(fields):
        raise Invalid("cronExpression", "is missing, and so is every", "a schedule needs one of them")
    try:
        spec = build_spec(fields)
        spec.check()
    except Invalid as error:
        problem, _ = build_problem(restore_names(error, written))
        raise Invalid(problem.field, error.reason, error.hint) from None
    check_payload(read_payload(fields))
    return fields


def format_file(entries: Sequence[Entry], heading: Sequence[str] = ()) -> str:
    """Return the text of a schedules file that ``read`` accepts."""
    # Import here: YAML loads slowly, and every command would wait for it.
    from mainspring.core.runtime.plain_yaml import write_yaml

    lines = [_format_comment(line) for line in heading]
    lines.append("schedules:" if entries else "schedules: []")
    for entry in entries:
        lines.append("")
        lines += [_format_comment(line) for line in entry.comments]
        lines.append(write_yaml([dict(entry.fields)]).rstrip("\n"))
    return "\n".join(lines) + "\n"


def _parse(text: str, suffix: str, where: str) -> Any:
    match suffix.lower():
        case ".json":
            try:
                found = msgspec.json.decode(text)
                repeated = find_repeated_key(text.encode(), found)
            except (msgspec.DecodeError, RecursionError) as error:
                raise Invalid(where, f"is not JSON: {error}") from None
            if repeated:
                raise Invalid(where, f"{repeated} is given twice", "keep one of them")
            return found
        case ".toml":
            try:
                return tomllib.loads(text)
            except (tomllib.TOMLDecodeError, RecursionError) as error:
                raise Invalid(where, f"is not TOML: {error}") from None
        case ".yaml" | ".yml" | "":
            from mainspring.core.runtime.plain_yaml import read_yaml

            documents = read_yaml(text, where)
            if len(documents) > 1:
                raise Invalid(where, f"has {len(documents)} documents", "use one document, without ---")
            return documents[0] if documents else None
        case _:
            raise Invalid(where, f"{suffix} is not a format of schedules files", ".yaml, .yml, .json or .toml")


def _encode(value: object, where: str) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(where, f"has a value that JSON cannot represent: {error}") from None


def _read_name(entry: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(entry, type=_NamedEntry).name[:80]
    except msgspec.MsgspecError:
        return ""


def _add_place(position: str, error: Invalid) -> Invalid:
    return Invalid(f"{position}: {error.field}", error.reason, error.hint)


def _format_comment(line: str) -> str:
    return "# " + "".join(letter if letter.isprintable() else " " for letter in line)
