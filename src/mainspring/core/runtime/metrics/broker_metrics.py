"""Metrics of the brokers that bring hints to this process."""

from collections.abc import Callable

from mainspring.core.model.base.instant import SECOND
from mainspring.core.runtime.brokers import Brokers, GuardedBroker
from mainspring.core.runtime.metrics import declared
from mainspring.core.runtime.metrics.exposition import Exposition
from mainspring.core.runtime.metrics.metric import Metric

_COUNTED: tuple[tuple[Metric, Callable[[GuardedBroker], int]], ...] = (
    (declared.PUBLISHED, lambda one: one.published),
    (declared.REPUBLISHED, lambda one: one.republished),
    (declared.TAKEN, lambda one: one.taken),
    (declared.CLAIMED, lambda one: one.claimed),
    (declared.REFUSED, lambda one: one.broker.refused),
    (declared.OUTAGES, lambda one: one.outages),
)


def export_brokers(brokers: Brokers | None, exposition: Exposition) -> None:
    """Report counters that are incremented where the calls are made."""
    for name, broker in ({} if brokers is None else brokers.named()).items():
        for metric, count in _COUNTED:
            exposition.put(metric, count(broker), name)
        exposition.put(declared.BROKER_UP, 0 if broker.away else 1, name)
        exposition.sums(declared.ROUND_TRIP, broker.calls, broker.busy / SECOND, name)
