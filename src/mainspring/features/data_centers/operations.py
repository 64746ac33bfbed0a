"""Operation on data centers: processes, load, and which one serves each order of preference."""

from mainspring.core.model.access.access import Permission
from mainspring.core.model.base.instant import MILLISECOND, Instant
from mainspring.core.ports.storage.datacenters import DatacenterLoad, DatacenterStatus, PreferenceOrder
from mainspring.http.context import Api
from mainspring.http.operation import Answer, Call, Empty, Resource
from mainspring.http.schemas.common import format_time
from mainspring.http.schemas.datacenters import DatacenterOut, DatacentersOut, OrderOut

datacenters = Resource(
    "Data centers", "Where processes run. A data center is listed until a day after its last process left."
)


@datacenters.operation("GET", "/v1/datacenters", permission=Permission.READ, answers={200: DatacentersOut})
async def list_datacenters(api: Api, call: Call[Empty, Empty]) -> Answer:
    """List known data centers, with their health and lag.

    `orders` shows which data center serves each order of preference. A key that is bound to a tenant sees the
    processes, but no amounts of work.
    """
    now = await api.store.now()
    data_centers = {data_center.name: data_center for data_center in await api.store.datacenters()}
    loads = {load.name: load for load in await api.store.datacenter_loads()} if call.principal.tenant is None else {}
    items = [
        _datacenter_out(
            data_centers.get(name, DatacenterStatus(name=name)), loads.get(name, DatacenterLoad(name=name)), now
        )
        for name in sorted(data_centers.keys() | loads.keys())
    ]
    orders = [_order_out(order) for order in await api.store.orders()] if call.principal.tenant is None else []
    return Answer(200, DatacentersOut(items=items, orders=orders))


def _datacenter_out(data_center: DatacenterStatus, load: DatacenterLoad, now: Instant) -> DatacenterOut:
    return DatacenterOut(
        name=data_center.name,
        health="ok" if data_center.workers else "no-workers",
        workers=data_center.workers,
        draining=data_center.draining,
        schedulers=data_center.schedulers,
        queued=load.queued,
        running=load.running,
        lag_ms=0.0 if load.oldest_due is None else max(now - load.oldest_due, 0) / MILLISECOND,
        last_worker_at=format_time(data_center.seen_at),
    )


def _order_out(order: PreferenceOrder) -> OrderOut:
    return OrderOut(order=order.word.partition("=")[2], serving=order.serving, reason=order.why or None)
