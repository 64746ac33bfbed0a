"""The current span, for code that passes it on. Imports no OpenTelemetry."""

import sys
from typing import Any


def current_ids() -> tuple[int, int, bool] | None:
    """Return the current trace id, span id, and whether they are recorded. None: there is no current span."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    # Another thread may be importing it.
    get = getattr(trace, "get_current_span", None)
    if get is None:
        return None
    context = get().get_span_context()
    return (context.trace_id, context.span_id, context.trace_flags.sampled) if context.is_valid else None


def current_traceparent() -> str:
    """Return the ``traceparent`` for an outgoing request; empty without a current span."""
    found = current_ids()
    return "" if found is None else f"00-{found[0]:032x}-{found[1]:016x}-{int(found[2]):02x}"
