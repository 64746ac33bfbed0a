"""Checks whether the result of a run can be stored."""

import msgspec

from mainspring.core.model.runs.names import MAX_RESULT

_json = msgspec.json.Decoder(msgspec.Raw)


def result_problem(result: bytes) -> str | None:
    """Return why a result cannot be stored; None if it can."""
    if len(result) > MAX_RESULT:
        return f"ResultTooLarge: the result has {len(result)} bytes, and at most {MAX_RESULT} are kept"
    try:
        _json.decode(result)
        result.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"ResultNotJSON: {error}"
    return None
