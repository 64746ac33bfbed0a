"""Names the option that the user typed in errors that name a field of the API or a setting."""

import re
from collections.abc import Sequence
from itertools import pairwise

from mainspring.core.model.base.errors import Invalid

#: The options for fields of the API, where they have other names.
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
#: Options whose errors name the file.
_FILES = ("--config", "--file", "-f")
_SHORT = {"--file": "-f", "--limit": "-n", "--queue": "-q", "--yes": "-y"}


def name_as_typed(error: Invalid, arguments: Sequence[str]) -> Invalid:
    """The same error by the option, or the field of ``--set``, that is among the arguments."""
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
                # One option gives all arguments of a task: say which one is wrong.
                inner = field.removeprefix("payload.") if field.startswith("payload.") else ""
                return _rename(error, f"{name} {inner}".rstrip())
    if (file_option := _find_file_option(field, arguments)) is not None:
        return _rename(error, f"{file_option} {field}")
    # The one option of `jobs submit` that can be missing. The task has no option.
    return _rename(error, "--name") if field == "name" and error.reason == "is missing" else error


def _rename(error: Invalid, option: str | None) -> Invalid:
    return Invalid(option or error.field, error.reason, error.hint)


def _find_file_option(file: str, arguments: Sequence[str]) -> str | None:
    """The option that was given this file, as ``--file NAME`` or as ``--file=NAME``."""
    given = [*pairwise(arguments), *((option, value) for option, _, value in (a.partition("=") for a in arguments))]
    return next((option for option, value in given if value == file and option in _FILES), None)


def _kebab(field: str) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[._]", "-", field)
    return f"--{words.lower()}"


def _fields_of_set(arguments: Sequence[str]) -> set[str]:
    """The fields in ``--set FIELD=VALUE`` and ``--set=FIELD=VALUE``."""
    given = [value for option, value in pairwise(arguments) if option == "--set"]
    given += [argument.removeprefix("--set=") for argument in arguments if argument.startswith("--set=")]
    return {text.partition("=")[0] for text in given}
