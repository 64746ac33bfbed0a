"""What may be kept as the result of a run."""

import msgspec

from mainspring.core.model.runs.names import MAX_RESULT

_json = msgspec.json.Decoder(msgspec.Raw)


def result_problem(result: bytes) -> str | None:
    """Why a result cannot be kept."""
    if len(result) > MAX_RESULT:
        return f"ResultTooLarge: the result has {len(result)} bytes, and at most {MAX_RESULT} are kept"
    try:
        _json.decode(result)
        result.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"ResultNotJSON: {error}"
    return None
