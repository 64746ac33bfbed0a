"""Health check of a coordinator: whether it answers, and which leases it grants."""

from mainspring.core.cluster.epoch_check import LONGER
from mainspring.core.model.base.errors import Fenced, StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, Micros, format_duration
from mainspring.core.model.cluster.diagnosis import Finding, Level
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.registry import Registry

#: No session of a store has this number, and the namespace belongs to no store.
_NOBODY = SessionId(0)
_NAMESPACE = "doctor"


async def examine_registry(registry: Registry, engine: str, lease: Micros, clock: Clock) -> Finding:
    """Check a coordinator. ``lease``: the lease that schedulers request."""
    await registry.open(_NAMESPACE)
    try:
        await registry.enter(_NOBODY, LONGER * lease)
        asked = clock.monotonic()
        view = await registry.look(_NOBODY)
        took = (clock.monotonic() - asked) // MILLISECOND
        await registry.exit(_NOBODY)
    except (StoreUnavailable, Fenced) as error:
        advice = "until it answers no scheduler fires; what is due fires late"
        return Finding(check="coordination", level=Level.PROBLEM, says=str(error), advice=advice)
    finally:
        await registry.close()
    says = f"{engine} answers in {took} ms and grants leases of {format_duration(view.lease)}"
    if view.lease < lease:
        advice = f"scheduler.lease is {format_duration(lease)}: make it shorter, or let the server grant longer ones"
        return Finding(check="coordination", level=Level.WARNING, says=says, advice=advice)
    return Finding(check="coordination", level=Level.OK, says=says)
