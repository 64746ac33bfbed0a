"""Converts calls of Python functions to payloads with named arguments."""

import inspect
from collections.abc import Callable, Mapping, Sequence

from mainspring.features.schedules.commands.converters.conversion import UntranslatableError


def build_payload(
    function: Callable[..., object] | None, args: Sequence[object], kwargs: Mapping[str, object]
) -> Mapping[str, object]:
    """Build the payload of a call. The function is needed to name positional arguments."""
    if not args:
        return dict(kwargs)
    if function is None:
        raise UntranslatableError(
            "it has positional arguments, and the function cannot be imported to name them: use kwargs"
        )
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise UntranslatableError(f"its arguments do not fit the function: {error}") from None
    kinds = {parameter.kind for parameter in bound.signature.parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}:
        raise UntranslatableError("the function has positional-only parameters")
    named = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
    return named
