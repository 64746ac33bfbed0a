"""Parses and formats the data centers of a job."""

import re

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.cluster.labels import AND_THEN

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


def format_datacenters(given: msgspec.Raw | msgspec.UnsetType) -> str:
    if given is msgspec.UNSET:
        return ""
    found = msgspec.json.decode(given)
    if isinstance(found, dict):
        return AND_THEN.join([*found["prefer"], found.get("failoverAfter", "30s")])
    return found if isinstance(found, str) else ", ".join(found)
