"""Health check of a coordinator: whether it answers, and which leases it grants."""

from mainspring.core.cluster.epoch_check import LONGER
from mainspring.core.model.base.errors import Fenced, StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, Micros, format_duration
from mainspring.core.model.cluster.diagnosis import Finding, Level
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.registry import Registry

#: No session of a store has this number, and the namespace belongs to no store.
_UNUSED_SESSION = SessionId(0)
_NAMESPACE = "doctor"


async def check_coordinator(coordinator: Registry, kind: str, lease: Micros, clock: Clock) -> Finding:
    """Check a coordinator. ``lease``: the lease that schedulers request."""
    await coordinator.open(_NAMESPACE)
    try:
        await coordinator.enter(_UNUSED_SESSION, LONGER * lease)
        began = clock.monotonic()
        view = await coordinator.look(_UNUSED_SESSION)
        took = (clock.monotonic() - began) // MILLISECOND
        await coordinator.exit(_UNUSED_SESSION)
    except (StoreUnavailable, Fenced) as error:
        advice = "no scheduler fires until the coordinator answers; due ticks then fire late"
        return Finding(check="coordination", level=Level.PROBLEM, says=str(error), advice=advice)
    finally:
        await coordinator.close()
    says = f"{kind} answers in {took} ms and grants leases of {format_duration(view.lease)}"
    if view.lease < lease:
        advice = f"scheduler.lease is {format_duration(lease)}: shorten it, or allow longer leases on the server"
        return Finding(check="coordination", level=Level.WARNING, says=says, advice=advice)
    return Finding(check="coordination", level=Level.OK, says=says)
