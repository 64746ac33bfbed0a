"""Converts calls of Python functions to payloads with named arguments."""

import inspect
from collections.abc import Callable, Mapping, Sequence

from mainspring.features.schedules.commands.converters.conversion import Untranslatable


def payload_of(
    function: Callable[..., object] | None, args: Sequence[object], kwargs: Mapping[str, object]
) -> Mapping[str, object]:
    """Build the payload of a call. The function is needed to name positional arguments."""
    if not args:
        return dict(kwargs)
    if function is None:
        raise Untranslatable("it has positional arguments, and the function is not at hand to name them: use kwargs")
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise Untranslatable(f"its arguments do not fit the function: {error}") from None
    kinds = {parameter.kind for parameter in bound.signature.parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}:
        raise Untranslatable("the function has parameters without a name of their own")
    named = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
    return named
