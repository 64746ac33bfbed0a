"""Translates errors that name a field of the API or a setting into the option that the user typed."""

import re
from collections.abc import Sequence
from itertools import pairwise

from mainspring.core.model.base.errors import Invalid

#: The options of API fields whose names differ.
_OPTIONS = {
    "canaries": ("--canary",),
    "closedDays": ("--closed",),
    "createdAfter": ("--after",),
    "createdBefore": ("--before",),
    "cronExpression": ("--cron",),
    "expiresIn": ("--expires",),
    "fingerprint": ("--group",),
    "freezes": ("--freeze",),
    "holidays": ("--holiday",),
    "idempotencyKey": ("--unique",),
    "limits": ("--limit",),
    "maxRetries": ("--retries",),
    "openHours": ("--hours",),
    "payload": ("--payload", "--arg"),
    "payloadPatch": ("--patch",),
    "queues": ("--queue",),
    "requires": ("--require",),
    "scheduleTime": ("--at",),
    "since": ("--from",),
    "tags": ("--tag",),
    "timezone": ("--tz",),
}
#: Options that take a file; their errors name the file.
_FILES = ("--config", "--file", "-f")
_SHORT = {"--file": "-f", "--limit": "-n", "--queue": "-q", "--yes": "-y"}


def name_as_typed(error: Invalid, arguments: Sequence[str]) -> Invalid:
    """Return the same error for the option, or the ``--set`` field, that is among the arguments."""
    field = error.field
    typed = {argument.partition("=")[0] for argument in arguments if argument.startswith("-")}
    if field.startswith("--"):
        short = _SHORT.get(field)
        return _rename(error, short) if field not in typed and short in typed else error
    root = re.split(r"[.\[]", field, maxsplit=1)[0]
    if {field, root} & _fields_of_set(arguments):
        return _rename(error, f"--set {field}")
    for option in (*_OPTIONS.get(root, ()), _kebab(field), _kebab(root), _kebab(field.rpartition(".")[2])):
        for name in (option, _SHORT.get(option)):
            if name in typed:
                # One option sets all arguments of a task, so name the argument as well.
                inner = field.removeprefix("payload.") if field.startswith("payload.") else ""
                return _rename(error, f"{name} {inner}".rstrip())
    if (file_option := _find_file_option(field, arguments)) is not None:
        return _rename(error, f"{file_option} {field}")
    # A missing name means a missing option of ``jobs submit``. Its task is an argument, not an option.
    return _rename(error, "--name") if field == "name" and error.reason == "is missing" else error


def _rename(error: Invalid, option: str | None) -> Invalid:
    return Invalid(option or error.field, error.reason, error.hint)


def _find_file_option(file: str, arguments: Sequence[str]) -> str | None:
    """Return the option that received this file, as ``--file NAME`` or ``--file=NAME``."""
    given = [*pairwise(arguments), *((option, value) for option, _, value in (a.partition("=") for a in arguments))]
    return next((option for option, value in given if value == file and option in _FILES), None)


def _kebab(field: str) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[._]", "-", field)
    return f"--{words.lower()}"


def _fields_of_set(arguments: Sequence[str]) -> set[str]:
    """Return the fields in ``--set FIELD=VALUE`` and ``--set=FIELD=VALUE``."""
    given = [value for option, value in pairwise(arguments) if option == "--set"]
    given += [argument.removeprefix("--set=") for argument in arguments if argument.startswith("--set=")]
    return {text.partition("=")[0] for text in given}
