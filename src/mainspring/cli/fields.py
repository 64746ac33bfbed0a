"""Options of job commands, and parsers for payloads, arguments and fields."""

import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer

from mainspring.core.model.base.errors import Invalid

Payload: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--payload",
        help="The arguments of the task: JSON, @file with JSON, or - for JSON on stdin.",
        show_default=False,
    ),
]
Set: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A field of the job as the API calls it, such as overlap=skip or jitter=30s; can be repeated.",
        metavar="FIELD=VALUE",
        show_default=False,
    ),
]
Wait: TypeAlias = Annotated[
    bool, typer.Option("--wait", help="Wait until it has ended; exit code 1 if it did not succeed.")
]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Limit: TypeAlias = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=1_000_000, help="The largest number of items.")
]
Status: TypeAlias = Annotated[
    str | None, typer.Option("--status", help="One or several, separated by commas.", show_default=False)
]
Task: TypeAlias = Annotated[str | None, typer.Option("--task", help="Only of this task.", show_default=False)]
Queue: TypeAlias = Annotated[str | None, typer.Option("--queue", "-q", help="Only in this queue.", show_default=False)]
Tag: TypeAlias = Annotated[str | None, typer.Option("--tag", help="Only with this tag.", show_default=False)]
Contains: TypeAlias = Annotated[
    str | None, typer.Option("--text", help="Part of the name, the task or the id.", show_default=False)
]
After: TypeAlias = Annotated[
    str | None, typer.Option("--after", help="Created after this time (RFC 3339).", show_default=False)
]
Before: TypeAlias = Annotated[
    str | None, typer.Option("--before", help="Created before this time (RFC 3339).", show_default=False)
]
Everything: TypeAlias = Annotated[bool, typer.Option("--all", help="Every matching one.")]


def read_payload(text: str, option: str = "--payload") -> msgspec.Raw:
    data: bytes
    if text == "-":
        data = sys.stdin.buffer.read()
    elif text.startswith("@"):
        try:
            data = Path(text[1:]).expanduser().read_bytes()
        except OSError as error:
            raise Invalid(option, f"{text[1:]} cannot be read: {error.strerror}") from None
    else:
        data = text.encode()
    return _check_json(data, option)


def read_arguments(given: list[str]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(dict(_split_pair(text, "--arg") for text in given)))


def read_fields(given: list[str] | None) -> dict[str, object]:
    return dict(_split_pair(text, "--set") for text in given or ())


def _split_pair(text: str, option: str) -> tuple[str, object]:
    """Parse ``name=value``. A value that is valid JSON is taken as JSON, any other as text."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise Invalid(option, f"{text!r:.60} has no name", "for example name=value")
    try:
        return name, _check_json(value.encode(), option)
    except Invalid:
        return name, value


def _check_json(data: bytes, option: str) -> msgspec.Raw:
    try:
        msgspec.json.decode(data)
        data.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(option, f"is not JSON: {error}", """for example '{"user_id": 42}'""") from None
    return msgspec.Raw(data)


def read_limits(given: list[str]) -> list[dict[str, object]]:
    """Parse limits: ``KEY=3`` for concurrency, ``KEY=100/1m`` for a rate. A key may contain an equals sign."""
    limits: list[dict[str, object]] = []
    for text in given:
        key, sign, rest = text.rpartition("=")
        most, _, per = rest.partition("/")
        if not sign or not key or not most.isascii() or not most.isdigit():
            raise Invalid("--limit", f"{text!r:.60} is not a limit", "for example customer:7=3 or api=100/1m")
        limits.append({"key": key, "most": int(most), **({"per": per} if per else {})})
    return limits
