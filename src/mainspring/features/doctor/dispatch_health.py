"""Health check of a broker: whether it answers and is configured well."""

from collections.abc import Sequence

from mainspring.core.model.base.errors import BrokerUnavailable
from mainspring.core.model.base.instant import MILLISECOND
from mainspring.core.model.cluster.diagnosis import Finding, Level
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.dispatch import Dispatch

#: Namespace used when the store's is unknown.
_NOBODYS = "doctor"
_QUEUES_LOOKED_AT = 100


async def examine_engine(engine: Dispatch, clock: Clock, namespace: str, queues: Sequence[str]) -> Finding:
    """Check a broker. ``queues``: those that it carries hints of; reading a queue's depth finds problems with it."""
    await engine.open(namespace or _NOBODYS)
    try:
        for queue in queues[:_QUEUES_LOOKED_AT]:
            await engine.depth(queue)
        asked = clock.monotonic()
        warnings = await engine.warnings()
        took = (clock.monotonic() - asked) // MILLISECOND
    except BrokerUnavailable as error:
        advice = "until it answers workers are fed by the store"
        return Finding(check="dispatch", level=Level.WARNING, says=str(error), advice=advice)
    finally:
        await engine.close()
    if warnings:
        advice = "no work is lost by it: what the engine does not bring comes from the store"
        return Finding(check="dispatch", level=Level.WARNING, says="; ".join(warnings), advice=advice)
    return Finding(check="dispatch", level=Level.OK, says=f"{engine.kind} answers in {took} ms")
