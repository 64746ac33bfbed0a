"""Names the option that the user typed in errors that name a field of the API or a setting."""

import re
from collections.abc import Sequence
from itertools import pairwise

from mainspring.domain.errors import Invalid

#: The options for fields of the API, where they have other names.
_OPTIONS = {
    "canaries": ("--canary",),
    "closedDays": ("--closed",),
    "createdAfter": ("--after",),
    "createdBefore": ("--before",),
    "cronExpression": ("--cron",),
    "expiresIn": ("--expires",),
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
    "tags": ("--tag",),
    "timezone": ("--tz",),
}
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
    return error


def _rename(error: Invalid, option: str | None) -> Invalid:
    return Invalid(option or error.field, error.reason, error.hint)


def _kebab(field: str) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[._]", "-", field)
    return f"--{words.lower()}"


def _fields_of_set(arguments: Sequence[str]) -> set[str]:
    """The fields in ``--set FIELD=VALUE`` and ``--set=FIELD=VALUE``."""
    given = [value for option, value in pairwise(arguments) if option == "--set"]
    given += [argument.removeprefix("--set=") for argument in arguments if argument.startswith("--set=")]
    return {text.partition("=")[0] for text in given}
