"""Health check of a broker: whether it answers and is configured well."""

from collections.abc import Sequence

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import MILLISECOND
from mainspring.core.model.cluster.diagnosis import Finding, Level
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.dispatch import Broker

#: Namespace used when the store's is unknown.
_UNKNOWN_NAMESPACE = "doctor"
_MAX_QUEUES = 100


async def check_broker(broker: Broker, clock: Clock, namespace: str, queues: Sequence[str]) -> Finding:
    """Check a broker. ``queues``: those that it carries hints of; reading a queue's depth finds problems with it."""
    await broker.open(namespace or _UNKNOWN_NAMESPACE)
    try:
        for queue in queues[:_MAX_QUEUES]:
            await broker.depth(queue)
        began = clock.monotonic()
        warnings = await broker.warnings()
        took = (clock.monotonic() - began) // MILLISECOND
    except BrokerUnavailable as error:
        advice = "workers claim from the store until the broker answers"
        return Finding(check="dispatch", level=Level.WARNING, says=str(error), advice=advice)
    finally:
        await broker.close()
    if warnings:
        advice = "no run is lost: workers also claim from the store"
        return Finding(check="dispatch", level=Level.WARNING, says="; ".join(warnings), advice=advice)
    return Finding(check="dispatch", level=Level.OK, says=f"{broker.kind} answers in {took} ms")
