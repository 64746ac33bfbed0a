"""Parses and formats the data centers of a job."""

import re

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.cluster.labels import AND_THEN
from mainspring.http.schemas.datacenters import DatacentersIn, PreferIn

#: A duration at the end of an order of preference is the failover delay, not a name.
_TIME = re.compile(r"([0-9]+(ms|[smhd]))+")


def parse_datacenters(text: str) -> object:
    """Parse ``us,eu``, ``all``, ``any``, or an order of preference such as ``us>eu>30s`` for the API."""
    if text in ("all", "any"):
        return text
    if AND_THEN not in text:
        return [name.strip() for name in text.split(",") if name.strip()]
    order = [name.strip() for name in text.split(AND_THEN)]
    if not all(order):
        raise Invalid("--datacenters", f"{text!r} is no order", "for example us>eu>30s")
    after = order.pop() if _TIME.fullmatch(order[-1]) else None
    return {"prefer": order} | ({} if after is None else {"failoverAfter": after})


def format_datacenters(given: DatacentersIn | msgspec.UnsetType) -> str:
    if given is msgspec.UNSET:
        return ""
    if isinstance(given, PreferIn):
        return AND_THEN.join([*given.prefer, str(given.failover_after)])
    return given if isinstance(given, str) else ", ".join(given)
