"""The fields of a policy over the wire.

A field has the same name in ``RunPolicy``, in requests (``JobFields``) and in answers (``JobOut``). It is copied as it
is, unless ``_CONVERSIONS`` has its conversion: a new field needs no code here, in the SDK's client or where jobs are
edited.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import UNSET

from mainspring.core.model.runs.policy import PLAIN_FIELDS, RunPolicy
from mainspring.http.schemas.common import render_retention
from mainspring.http.schemas.limits import read_breaker, read_limits, render_breaker, render_limits


class _Conversion(NamedTuple):
    read: Callable[[Any], Any]
    render: Callable[[Any], Any]


_CONVERSIONS = {
    "retention": _Conversion(lambda name: name or "", render_retention),
    "limits": _Conversion(read_limits, render_limits),
    "breaker": _Conversion(read_breaker, render_breaker),
}


def read_policy_fields(fields: Any) -> dict[str, Any]:
    """Return the plain policy fields that a request sets, as the model has them."""
    found: dict[str, Any] = {}
    for name in PLAIN_FIELDS:
        value = getattr(fields, name)
        if value is not UNSET:
            conversion = _CONVERSIONS.get(name)
            found[name] = value if conversion is None else conversion.read(value)
    return found


def render_policy_fields(policy: RunPolicy) -> dict[str, Any]:
    """Return the plain policy fields as a request sets them."""
    found: dict[str, Any] = {}
    for name in PLAIN_FIELDS:
        value = getattr(policy, name)
        conversion = _CONVERSIONS.get(name)
        found[name] = value if conversion is None else conversion.render(value)
    return found
