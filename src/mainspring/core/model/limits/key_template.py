"""Keys that refer to payload fields: ``customer:{payload.customer.id}``. Rendered once, at submission."""

import re
from collections.abc import Collection

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.unique import Unique

#: A placeholder of a template, with the path inside.
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_HINT = "for example {payload.customer}; a path has dots between names"


def rendered(template: str, payload: bytes, field: str) -> str:
    """Return the key for this payload. ``Invalid`` names a field that the payload lacks."""
    if "{" not in template and "}" not in template:
        return template
    try:
        values = {"payload": msgspec.json.decode(payload)}
    except (msgspec.DecodeError, RecursionError):
        raise Invalid(field, f"{template!r} needs a payload that is JSON") from None
    check_template(template, field)
    return PLACEHOLDER.sub(lambda found: _value(values, found[1], field), template)


def check_template(template: str, field: str, arguments: Collection[str] | None = None) -> None:
    """Refuse a template that no payload can fill. ``arguments``: the fields that payloads have, if they are known."""
    check_braces(template, field, _HINT)
    for path in PLACEHOLDER.findall(template):
        root, *names = path.split(".")
        if root != "payload" or not all(names):
            raise Invalid(field, f"{{{path}}} is not a field of the payload", _HINT)
        if arguments is not None and (not names or names[0] not in arguments):
            known = ", ".join(arguments) or "none"
            raise Invalid(field, f"{{{path}}} is not an argument of the task", f"its arguments: {known}")


def check_braces(template: str, field: str, hint: str) -> None:
    if set("{}") & set(PLACEHOLDER.sub("", template)):
        raise Invalid(field, f"{template!r} has a brace without its partner", hint)


def find_value(values: object, path: str) -> object:
    """Return the value at a path such as ``customer.items.0``. Raise ``LookupError`` if there is none."""
    found = values
    for name in path.split("."):
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isascii() and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise LookupError(path)
    return found


def format_value(value: object) -> str | None:
    """Format a text, number or boolean for a key; None for any other value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def with_keys(run: NewRun) -> NewRun:
    """Return the run with its keys rendered from the payload."""
    if not run.policy.limits and run.unique is None:
        return run
    unique = None if run.unique is None else unique_with_key(run.unique, run.payload)
    return msgspec.structs.replace(run, policy=policy_with_keys(run.policy, run.payload), unique=unique)


def unique_with_key(unique: Unique, payload: bytes) -> Unique:
    return msgspec.structs.replace(unique, key=rendered(unique.key, payload, "unique.key"))


def policy_with_keys(policy: RunPolicy, payload: bytes) -> RunPolicy:
    """Return the policy with rendered limit keys. Without templates it is the same object, whose check is cached."""
    if not any("{" in limit.key or "}" in limit.key for limit in policy.limits):
        return policy
    limits = tuple(
        msgspec.structs.replace(limit, key=rendered(limit.key, payload, "limits.key")) for limit in policy.limits
    )
    return msgspec.structs.replace(policy, limits=limits)


def _value(values: object, path: str, field: str) -> str:
    try:
        found = format_value(find_value(values, path))
    except LookupError:
        raise Invalid(field, f"the payload has no {path.removeprefix('payload.')!r}, which the key names") from None
    if found is None:
        raise Invalid(field, f"{path.removeprefix('payload.')!r} of the payload is not a text or a number")
    return found
