"""Data centers in the options of tasks and schedules."""

from collections.abc import Sequence
from typing import Literal

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Duration, parse_duration
from mainspring.core.model.cluster.datacenters import ALL, Preference, check_datacenter_name
from mainspring.core.model.cluster.labels import check_labels_kept


def prefer(*datacenters: str, failover_after: Duration = "30s") -> str:
    """Return a value for the label ``datacenter``: the first of these data centers with a live worker is used.

    ``failover_after``: how long to wait for a data center without a live worker; whole seconds. Example:
    ``requires={"datacenter": prefer("us", "eu")}``.
    """
    patience = parse_duration(failover_after, "failover_after")
    if patience % SECOND:
        raise Invalid("failover_after", f"{failover_after!r} is not whole seconds", "for example 30s")
    for name in datacenters:
        check_datacenter_name("datacenter", name)
    word = Preference(datacenters, patience).word
    check_labels_kept("datacenter", (word,))
    return word.partition("=")[2]


def read_targets(datacenters: Sequence[str] | Literal["all"]) -> tuple[str, ...]:
    if isinstance(datacenters, str):
        if datacenters != "all":
            raise Invalid("datacenters", f"{datacenters!r:.40} is not a list of names", 'a list, or "all"')
        return (ALL,)
    return tuple(datacenters)
