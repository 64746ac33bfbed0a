"""What traces cost where they are off: the looks for them, alone.

    python -m bench.experiments.tracing_off

A run passes two: of the batch that it is submitted with, and of the batch that it is completed with. Code that calls
another server or writes a log line asks which span is the current one. OpenTelemetry is not imported.
"""

import sys
from time import thread_time
from timeit import repeat

from mainspring.core.runtime.tracing.current import current_traceparent

_TIMES = 20_000


class Holder:
    """As ``Jobs`` and ``Completer`` have it."""

    def __init__(self) -> None:
        self._tracing = None

    def looks(self, batch: list[int]) -> list[int]:
        if self._tracing is not None:
            raise AssertionError
        return batch

    def does_not(self, batch: list[int]) -> list[int]:
        return batch


def nanoseconds(statement: str) -> float:
    """Processor time, the least of many: what else the machine does only adds to it."""
    names = {"holder": Holder(), "batch": [1], "current_traceparent": current_traceparent}
    return min(repeat(statement, timer=thread_time, globals=names, number=_TIMES, repeat=300)) / _TIMES * 1e9


def main() -> None:
    look = nanoseconds("holder.looks(batch)") - nanoseconds("holder.does_not(batch)")
    print(f"a look of a batch: {look:.0f} ns")
    for size in (1, 50, 200):
        print(f"a run in batches of {size}: {2 * look / size:.2f} ns")
    print(f"asking for the current span: {nanoseconds('current_traceparent()'):.0f} ns")
    assert not any(name.startswith("opentelemetry") for name in sys.modules)


if __name__ == "__main__":
    main()
