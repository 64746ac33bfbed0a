"""Data centres: where a run may go, where each tick of a job goes, and who stands in when one of them is gone.

Where a worker is is a label of it, ``datacenter=eu``; a run for a data centre requires that label. So nobody looks at
what is for another place, and whatever holds for labels holds here.

- A job with ``datacenters`` makes a run of each tick for every one of them. Each has its own row in the ledger, and the
  overlap rule looks at the runs of its own data centre.
- An order of preference is one label, ``datacenter=us>eu>30s``: a run for the first of these that has a live worker, or
  had one 30 seconds ago. Which workers have such a label follows from who is alive; the runs themselves never move.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Instant, Micros
from mainspring.core.model.cluster.labels import AND_THEN, DATACENTER, MAX_PLACES, read_label
from mainspring.core.model.runs.policy import RunPolicy

#: In place of names: every data centre that is known when the tick is planned.
ALL = "*"


class Preference(NamedTuple):
    """The first of these that has a live worker, or had one so long ago."""

    order: tuple[str, ...]
    patience: Micros

    @property
    def word(self) -> str:
        return f"{DATACENTER}={AND_THEN.join(self.order)}{AND_THEN}{self.patience // SECOND}s"


class Serving(NamedTuple):
    """Who serves an order of preference, and why it is not the first of it."""

    datacenter: str
    why: str = ""


def preference_of(requires: Iterable[str]) -> Preference | None:
    """The order of preference among what a run requires."""
    for word in requires:
        name, _, value = word.partition("=")
        if name == DATACENTER and AND_THEN in value:
            *order, patience = value.split(AND_THEN)
            return Preference(tuple(order), int(patience.removesuffix("s")) * SECOND)
    return None


def place_of(requires: Iterable[str]) -> str | None:
    """The one data centre that a run is for."""
    for word in requires:
        name, _, value = word.partition("=")
        if name == DATACENTER and AND_THEN not in value:
            return value
    return None


def serving(preference: Preference, seen: Mapping[str, Instant], since: Instant, now: Instant) -> Serving:
    """``seen``: when each data centre last had a live worker. Of one that never had any the time counts from ``since``,
    when somebody first asked for it. Where nobody is left the first one is waited for."""
    gone: list[str] = []
    for place in preference.order:
        if now - seen.get(place, since) <= preference.patience:
            return Serving(place, moved(place, gone, preference) if gone else "")
        gone.append(place)
    return Serving(preference.order[0])


def moved(place: str, gone: Collection[str], preference: Preference) -> str:
    """For the ledger."""
    return f"moved to {place}: no live worker in {', '.join(gone)} for {preference.patience // SECOND} s"


def may_run(labels: Collection[str], datacenter: str, requires: Iterable[str], served: Mapping[str, str]) -> bool:
    """Whether a worker with these labels, there, may take a run. ``served``: by whom, for each order of preference."""
    return all(word in labels or (word in served and served[word] == datacenter) for word in requires)


def may_be_noted(reason: str) -> bool:
    """Whether what the ledger says of a tick may give way to where its run goes."""
    return not reason or reason.startswith(("moved to ", "moved back to "))


def targets_of(datacenters: tuple[str, ...], known: Iterable[str]) -> tuple[str, ...]:
    """Where each tick of a job goes."""
    return tuple(sorted(known)) if datacenters == (ALL,) else datacenters


def placed(policy: RunPolicy, target: str) -> RunPolicy:
    """The policy of a run that is for this data centre; without one it is as it was."""
    if not target:
        return policy
    return msgspec.structs.replace(policy, requires=requiring(policy.requires, f"{DATACENTER}={target}"))


def requiring(requires: Iterable[str], word: str) -> tuple[str, ...]:
    """Labels with one more, which takes the place of one of the same name."""
    name = word.partition("=")[0]
    return tuple(sorted([*(kept for kept in requires if kept.partition("=")[0] != name), word]))


def check_place(field: str, name: str) -> None:
    """Refuse what is not the name of one data centre."""
    if AND_THEN in name:
        raise Invalid(field, f"{name!r:.40} is not a name of a data centre", "without >")
    read_label(field, f"{DATACENTER}={name}")


def at_home(labels: tuple[str, ...], datacenter: str) -> tuple[tuple[str, ...], str]:
    """The labels of a worker and where it is: whoever says one of them has said the other."""
    # An order of preference is lent to workers, and no worker has one of its own.
    for word in labels:
        if word.startswith(f"{DATACENTER}="):
            check_place("labels", word.partition("=")[2])
    if not datacenter:
        return labels, place_of(labels) or ""
    check_place("datacenter", datacenter)
    if place_of(labels) not in (None, datacenter):
        raise Invalid("datacenter", f"is {datacenter}, and the label says {place_of(labels)}", "one of them")
    return requiring(labels, f"{DATACENTER}={datacenter}"), datacenter


def check_datacenters(datacenters: tuple[str, ...], requires: Collection[str], *, fixed_delay: bool) -> None:
    """What a job may say about where its ticks go."""
    if not isinstance(datacenters, tuple) or len(datacenters) > MAX_PLACES:
        raise Invalid("datacenters", "are too many, or no tuple", f"at most {MAX_PLACES} names")
    if not datacenters:
        return
    if datacenters != (ALL,):
        for name in datacenters:
            check_place("datacenters", name)
        if len(set(datacenters)) < len(datacenters):
            raise Invalid("datacenters", "has one of them twice")
    if fixed_delay:
        raise Invalid("datacenters", "does not go with a fixed delay", "a fixed rate, or one job for each data centre")
    if any(word.partition("=")[0] == DATACENTER for word in requires):
        raise Invalid("datacenters", f"does not go with a required label {DATACENTER}", "one of them")
