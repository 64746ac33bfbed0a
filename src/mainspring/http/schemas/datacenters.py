"""The data centers of a job in the wire format."""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Micros, format_duration
from mainspring.core.model.cluster.datacenters import (
    ALL,
    Preference,
    check_datacenter_name,
    check_datacenters,
    find_preference,
    placed,
    requiring,
)
from mainspring.core.model.cluster.labels import DATACENTER, MAX_PART, MAX_PREFERRED, check_labels_kept, split_labels
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.schedules.job import JobSpec
from mainspring.http.schemas.common import Span, Wire, parse_span

DatacenterName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_PART)]
#: The default of `failoverAfter`: how long to wait for a data center without a live worker.
PATIENCE: Micros = 30 * SECOND


class PreferIn(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """One run, in the first of these data centers that has a live worker."""

    prefer: Annotated[tuple[DatacenterName, ...], Meta(min_length=1, max_length=MAX_PREFERRED)]
    failover_after: Span = "30s"
    """How long to wait for a data center without a live worker before the next one is used; whole seconds."""


#: ``all``: every known data center; ``any``: any data center with a worker.
DatacentersIn: TypeAlias = (
    Literal["all", "any"]
    | PreferIn
    | Annotated[tuple[DatacenterName, ...], Meta(min_length=1, max_length=MAX_PREFERRED)]
)


def read_targets(given: DatacentersIn | UnsetType) -> tuple[str, ...]:
    """Return the data centers in each of which every tick of a recurring job has a run."""
    if given is UNSET or isinstance(given, PreferIn) or given == "any":
        return ()
    if isinstance(given, str):
        return (ALL,)
    return given


def read_requires(given: DatacentersIn | UnsetType, requires: tuple[str, ...], *, one_off: bool) -> tuple[str, ...]:
    """Return the required labels of a run, including the one for its data centers."""
    if given is UNSET or given == "any":
        return requires
    if isinstance(given, PreferIn):
        word = _format_word(given)
    elif one_off and isinstance(given, tuple) and len(given) == 1:
        check_datacenter_name("datacenters", given[0])
        word = f"{DATACENTER}={given[0]}"
    elif one_off:
        hint = 'one name, a job for each of them, or {"prefer": [...]}; a broadcast reaches every worker'
        raise Invalid("datacenters", "a one-off job goes to one data center", hint)
    else:
        return requires
    if any(kept.partition("=")[0] == DATACENTER for kept in requires):
        raise Invalid("datacenters", f"does not go with a required label {DATACENTER}", "one of them")
    check_labels_kept("datacenters", (word,))
    return requiring(requires, word)


def list_destinations(run: NewRun, spec: JobSpec, datacenter: str | UnsetType) -> NewRun:
    """Place a run of a job outside its schedule, which names its data center if the job has several."""
    targets = ", ".join(spec.targets) or "the name of one"
    if datacenter is UNSET:
        if spec.datacenters:
            raise Invalid("datacenter", "is missing: the job goes to several", targets)
        return run
    if spec.targets and datacenter not in spec.targets:
        raise Invalid("datacenter", f"{datacenter!r:.40} is not one that the job goes to", targets)
    check_datacenters((datacenter,), (), fixed_delay=False)
    return msgspec.structs.replace(run, policy=placed(run.policy, datacenter))


def _format_word(given: PreferIn) -> str:
    patience = parse_span(given.failover_after, "datacenters.failoverAfter")
    if patience % SECOND or patience <= 0:
        raise Invalid("datacenters.failoverAfter", f"{given.failover_after!r} is not whole seconds", "for example 30s")
    for name in given.prefer:
        check_datacenter_name("datacenters.prefer", name)
    if len(given.prefer) == 1:
        return f"{DATACENTER}={given.prefer[0]}"
    return Preference(given.prefer, patience).word


def render_datacenters(targets: tuple[str, ...], requires: tuple[str, ...]) -> DatacentersIn | UnsetType:
    """Return the data centers in the form of a request, or ``UNSET`` if the job may run anywhere."""
    if targets:
        return "all" if targets == (ALL,) else targets
    preference = find_preference(requires)
    if preference is None:
        return UNSET
    return PreferIn(prefer=preference.order, failover_after=format_duration(preference.patience))


def render_requires(requires: tuple[str, ...]) -> dict[str, str]:
    """Return the required labels without the order of data centers, which has its own field."""
    preference = find_preference(requires)
    return split_labels(requires if preference is None else [word for word in requires if word != preference.word])


class DatacenterOut(Wire):
    name: str
    health: Literal["ok", "no-workers"]
    """`ok`: runs for this data center can start."""
    workers: int
    draining: int
    """Workers that are draining and have not left yet."""
    schedulers: int
    queued: int
    """Queued runs that are for this data center, or that it serves."""
    running: int
    lag_ms: float
    """How long the oldest queued run has been due."""
    last_worker_at: str | None = None
    """When it last had a live worker."""


class OrderOut(Wire):
    """An order of preference that jobs use."""

    order: str
    serving: str
    reason: str | None = None
    """Why the data center is not the first of the order."""


class DatacentersOut(Wire):
    items: list[DatacenterOut]
    orders: list[OrderOut]
