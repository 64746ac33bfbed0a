"""Where the code that runs right now stands, for who passes that on. Imports no OpenTelemetry."""

import sys
from typing import Any


def current_ids() -> tuple[int, int, bool] | None:
    """Trace, span, and whether they are recorded; none where nobody traces."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    # Somebody may be about to import it.
    get = getattr(trace, "get_current_span", None)
    if get is None:
        return None
    context = get().get_span_context()
    return (context.trace_id, context.span_id, context.trace_flags.sampled) if context.is_valid else None


def current_traceparent() -> str:
    """For a request that goes out; empty where nobody traces."""
    found = current_ids()
    return "" if found is None else f"00-{found[0]:032x}-{found[1]:016x}-{int(found[2]):02x}"
