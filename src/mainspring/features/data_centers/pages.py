"""Dashboard page of data centers: processes, load, and which one serves for another."""

from typing import Any

from mainspring.core.model.access.access import Permission
from mainspring.features.data_centers.operations import list_datacenters
from mainspring.http.schemas.datacenters import DatacentersOut
from mainspring.web.page import Pages, Reply, Visit

datacenters = Pages()


@datacenters.page("GET", "/datacenters", permission=Permission.READ)
async def show_datacenters(visit: Visit[Any]) -> Reply:
    found: DatacentersOut = await visit.ask(list_datacenters)
    return visit.show("datacenters/page.html", data_centers=found.items, orders=found.orders)
