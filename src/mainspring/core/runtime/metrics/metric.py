"""The kinds of metrics, and how one is declared."""

import re
from enum import StrEnum

import msgspec

_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class Scope(StrEnum):
    """The subject of a metric, and so which processes report it."""

    PROCESS = "every process, about itself"
    WORK = "processes that submit, claim or complete runs, about these"
    WORKER = "workers, about themselves"
    SCHEDULER = "schedulers, about themselves"
    API = "APIs, about themselves"
    BROKERS = "processes with a broker, about their use of it"
    FLEET = "schedulers and APIs, about the whole fleet"
    STORE = "schedulers, about the store"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: MetricKind
    scope: Scope
    #: The description: one sentence, in Markdown for the reference.
    description: str
    labels: tuple[str, ...] = ()
    #: Histograms only: the upper bounds of the buckets.
    buckets: tuple[float, ...] = ()
    #: Only reported with ``metrics.tenants``.
    on_request: bool = False

    @property
    def plain(self) -> str:
        """The description without Markdown."""
        return _LINK.sub(r"\1", self.description).replace("`", "")

    @property
    def unit(self) -> str:
        """The unit, taken from the name by Prometheus conventions."""
        words = self.name.removesuffix("_total").split("_")
        return next((unit for unit in ("seconds", "bytes") if words[-1] == unit), "")


#: Filled by ``declared``.
DECLARED: list[Metric] = []


def declare(scope: Scope, kind: MetricKind, name: str, description: str, *labels: str, **more: object) -> Metric:
    metric = msgspec.convert(
        {
            "name": f"mainspring_{name}",
            "kind": kind,
            "scope": scope,
            "description": description,
            "labels": labels,
            **more,
        },
        Metric,
    )
    DECLARED.append(metric)
    return metric


def counter(scope: Scope, name: str, description: str, *labels: str, on_request: bool = False) -> Metric:
    return declare(scope, MetricKind.COUNTER, name, description, *labels, on_request=on_request)


def gauge(scope: Scope, name: str, description: str, *labels: str) -> Metric:
    return declare(scope, MetricKind.GAUGE, name, description, *labels)


def histogram(scope: Scope, name: str, description: str, *labels: str, buckets: tuple[float, ...]) -> Metric:
    return declare(scope, MetricKind.HISTOGRAM, name, description, *labels, buckets=buckets)
