"""Secrets by name: how a payload refers to them, and which tenants may use which names.

A value is never part of a payload. ``${secret:NAME}`` inside a string stands for it until the run is executed.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from mainspring.core.model.base.errors import Invalid

#: Shorter values cannot be masked: they would match in nearly every line.
SHORTEST = 6
LONGEST = 64 * 1024
#: Bounds the size of a payload after its references are replaced.
MOST_REFERENCES = 100
#: Stands for all names in a list of allowed names.
ANY = "*"
#: In an installation with one tenant, all secrets are meant for it. Other tenants need an explicit list.
DEFAULT_ALLOWED: Mapping[str, tuple[str, ...]] = {"default": (ANY,)}

_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,99}")
_REFERENCE = re.compile(r"\$\{secret:([^{}]*)\}")
_OPENING = "${secret:"


def check_secret_name(where: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(where, f"{name[:40]!r} cannot be the name of a secret", "capital letters, digits and _")
    return name


def check_secret_value(name: str, value: str) -> str:
    """Refuse a value that could not be masked in the output of a run."""
    if len(value) < SHORTEST:
        raise Invalid(name, f"the secret has {len(value)} characters", f"at least {SHORTEST}, or it cannot be masked")
    if "\0" in value:
        raise Invalid(name, "the secret holds a zero character")
    if len(value) > LONGEST:
        raise Invalid(name, f"the secret has {len(value)} characters", f"at most {LONGEST}")
    return value


def mentions(payload: bytes) -> bool:
    """Return whether this JSON may contain a reference. Cheap, as it is called for every payload of a built-in task."""
    # Escapes allow other spellings, so a payload with escapes is examined in full.
    return b"${secret:" in payload or (b"\\u" in payload and b"secret" in payload)


def names_in(value: Any, where: str = "payload") -> set[str]:
    """Return the secrets that a JSON value refers to. Raise ``Invalid`` for references in keys and for malformed ones.

    A malformed reference would otherwise be sent literally.
    """
    try:
        found = [name for path, text in _strings(value, where) for name in _names(text, path)]
    except RecursionError:
        raise Invalid(where, "is nested too deeply") from None
    if len(found) > MOST_REFERENCES:
        raise Invalid(where, f"refers {len(found)} times to secrets", f"at most {MOST_REFERENCES} times")
    return set(found)


def fill(text: str, read: Callable[[str], str]) -> str:
    """Replace the references in a text by values. References within values are not replaced."""
    return _REFERENCE.sub(lambda found: read(found[1]), text) if _OPENING in text else text


def fill_json(value: Any, read: Callable[[str], str]) -> Any:
    """Replace the references in the strings of a JSON value: a secret can only become a part of a string."""
    if isinstance(value, str):
        return fill(value, read)
    if isinstance(value, list):
        return [fill_json(each, read) for each in value]
    if isinstance(value, dict):
        return {key: fill_json(each, read) for key, each in value.items()}
    return value


class SecretRules:
    """The names of secrets that each tenant may use."""

    def __init__(self, allowed: Mapping[str, Collection[str]] = DEFAULT_ALLOWED) -> None:
        self._allowed = allowed

    def allows(self, tenant: str, name: str) -> bool:
        names = self._allowed.get(tenant, ())
        return ANY in names or name in names

    def check(self, where: str, tenant: str, name: str) -> None:
        check_secret_name(where, name)
        if not self.allows(tenant, name):
            raise Invalid(where, f"tenant {tenant!r} may not use the secret {name}", "secrets.allow names what it may")


def _strings(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from _strings(each, f"{where}[{place}]")
    elif isinstance(value, dict):
        for key, each in value.items():
            if _OPENING in key:
                raise Invalid(where, "a name of a field cannot hold a secret", "refer to it in a value")
            yield from _strings(each, f"{where}.{key}")


def _names(text: str, where: str) -> Iterator[str]:
    if text.count(_OPENING) != len(found := _REFERENCE.findall(text)):
        raise Invalid(where, "holds a reference to a secret without its end", "${secret:NAME}")
    for name in found:
        yield check_secret_name(where, name)
