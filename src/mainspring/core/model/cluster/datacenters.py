"""Data centers: where a run may execute, where each tick of a job runs, and the failover between data centers.

A worker's data center is one of its labels, ``datacenter=eu``, and a run for a data center requires that label. Workers
therefore never see runs for other data centers, and all rules for labels apply.

- A job with ``datacenters`` creates a run of each tick for every one of them. Each has its own row in the ledger, and
  the overlap rule considers the runs of its own data center.
- An order of preference is one label, ``datacenter=us>eu>30s``: the run goes to the first of these that has a live
  worker, or had one within the last 30 seconds. Which workers have such a label depends on which are alive; the runs
  themselves never move.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.cluster.labels import AND_THEN, DATACENTER, MAX_PREFERRED, read_label
from mainspring.core.model.runs.policy import RunPolicy

#: In place of names: every data center that is known when the tick is planned.
ALL = "*"


class Preference(NamedTuple):
    """An order of preference: the first data center with a live worker now or within ``patience``."""

    order: tuple[str, ...]
    patience: Micros

    @property
    def word(self) -> str:
        return f"{DATACENTER}={AND_THEN.join(self.order)}{AND_THEN}{self.patience // SECOND}s"


class Serving(NamedTuple):
    """The data center that serves an order of preference, and why it is not the first one."""

    datacenter: str
    why: str = ""


def find_preference(requires: Iterable[str]) -> Preference | None:
    """Return the order of preference among the required labels of a run; None: there is none."""
    for word in requires:
        name, _, value = word.partition("=")
        if name == DATACENTER and AND_THEN in value:
            *order, patience = value.split(AND_THEN)
            return Preference(tuple(order), int(patience.removesuffix("s")) * SECOND)
    return None


def find_datacenter(requires: Iterable[str]) -> str | None:
    """Return the single data center that a run requires; None: there is none."""
    for word in requires:
        name, _, value = word.partition("=")
        if name == DATACENTER and AND_THEN not in value:
            return value
    return None


def serving(preference: Preference, seen: Mapping[str, Instant], since: Instant, now: Instant) -> Serving:
    """Return the data center that serves an order of preference.

    ``seen``: when each data center last had a live worker. For one that never had any, the time counts from ``since``,
    when the preference was first requested. If all are gone, the runs wait for the first one.
    """
    gone: list[str] = []
    for datacenter in preference.order:
        if now - seen.get(datacenter, since) <= preference.patience:
            return Serving(datacenter, moved(datacenter, gone, preference) if gone else "")
        gone.append(datacenter)
    return Serving(preference.order[0])


def moved(datacenter: str, gone: Collection[str], preference: Preference) -> str:
    """Return the ledger's reason for a run that failed over to another data center."""
    return f"moved to {datacenter}: no live worker in {', '.join(gone)} for {preference.patience // SECOND} s"


def may_run(labels: Collection[str], datacenter: str, requires: Iterable[str], served: Mapping[str, str]) -> bool:
    """Return whether a worker with these labels in this data center may take a run.

    ``served``: the data center that serves each order of preference.
    """
    return all(word in labels or (word in served and served[word] == datacenter) for word in requires)


def may_be_noted(reason: str) -> bool:
    """Return whether the ledger's reason of a tick may be replaced by the reason of a failover."""
    return not reason or reason.startswith(("moved to ", "moved back to "))


def list_targets(datacenters: tuple[str, ...], known: Iterable[str]) -> tuple[str, ...]:
    """Return the data centers in which each tick of a job runs."""
    return tuple(sorted(known)) if datacenters == (ALL,) else datacenters


def placed(policy: RunPolicy, target: str) -> RunPolicy:
    """Return the policy of a run for this data center; an empty target leaves it unchanged."""
    if not target:
        return policy
    return msgspec.structs.replace(policy, requires=requiring(policy.requires, f"{DATACENTER}={target}"))


def requiring(requires: Iterable[str], word: str) -> tuple[str, ...]:
    """Return the labels with one added, which replaces a label of the same name."""
    name = word.partition("=")[0]
    return tuple(sorted([*(kept for kept in requires if kept.partition("=")[0] != name), word]))


def check_datacenter_name(field: str, name: str) -> None:
    """Refuse a text that is not the name of a single data center."""
    if AND_THEN in name:
        raise Invalid(field, f"{name!r:.40} is not a name of a data center", "without >")
    read_label(field, f"{DATACENTER}={name}")


def at_home(labels: tuple[str, ...], datacenter: str) -> tuple[tuple[str, ...], str]:
    """Return the labels and the data center of a worker; either one implies the other."""
    # Orders of preference are assigned to workers; a worker must not declare one itself.
    for word in labels:
        if word.startswith(f"{DATACENTER}="):
            check_datacenter_name("labels", word.partition("=")[2])
    if not datacenter:
        return labels, find_datacenter(labels) or ""
    check_datacenter_name("datacenter", datacenter)
    if find_datacenter(labels) not in (None, datacenter):
        raise Invalid("datacenter", f"is {datacenter}, and the label says {find_datacenter(labels)}", "one of them")
    return requiring(labels, f"{DATACENTER}={datacenter}"), datacenter


def check_datacenters(datacenters: tuple[str, ...], requires: Collection[str], *, fixed_delay: bool) -> None:
    """Check a job's list of data centers against its other options."""
    if not isinstance(datacenters, tuple) or len(datacenters) > MAX_PREFERRED:
        raise Invalid("datacenters", "are too many, or no tuple", f"at most {MAX_PREFERRED} names")
    if not datacenters:
        return
    if datacenters != (ALL,):
        for name in datacenters:
            check_datacenter_name("datacenters", name)
        if len(set(datacenters)) < len(datacenters):
            raise Invalid("datacenters", "has one of them twice")
    if fixed_delay:
        raise Invalid("datacenters", "does not go with a fixed delay", "a fixed rate, or one job for each data center")
    if any(word.partition("=")[0] == DATACENTER for word in requires):
        raise Invalid("datacenters", f"does not go with a required label {DATACENTER}", "one of them")
