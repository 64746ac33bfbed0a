"""The opened adapters that every part of a worker uses."""

from random import Random
from typing import TYPE_CHECKING

import msgspec

from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.catalog import WorkerStore
from mainspring.core.ports.wakeups import Wakeups
from mainspring.core.runtime.metrics.run_metrics import RunMetrics
from mainspring.core.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from mainspring.core.runtime.tracing.spans import Tracing


class WorkerRuntime(msgspec.Struct, frozen=True, eq=False):
    store: WorkerStore
    wakeups: Wakeups
    clock: Clock
    settings: WorkerSettings = msgspec.field(default_factory=WorkerSettings)
    #: Spreads pauses and back-offs.
    jitter: Random = msgspec.field(default_factory=Random)
    #: Counts what happens.
    metrics: RunMetrics | None = None
    #: Records spans.
    tracing: "Tracing | None" = None
