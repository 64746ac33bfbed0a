"""The metrics of one scrape, and their rendering for Prometheus."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from mainspring.core.runtime.metrics.counters import Histogram, LabelCounts
from mainspring.core.runtime.metrics.metric import Metric, MetricKind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """Collects the metrics of one scrape. Each combination of metric and labels is added once."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        family = self._family(metric)
        assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
        assert len(labels) == len(metric.labels)
        family.add_metric(labels, value)

    def counts(self, metric: Metric, tally: LabelCounts) -> None:
        """Add all counts of a tally. A metric without labels is always present, even with 0."""
        if not metric.labels:
            self.put(metric, sum(tally.values()))
            return
        self._family(metric)
        for labels, count in list(tally.items()):
            self.put(metric, count, *labels)

    def spread(self, metric: Metric, spread: Histogram, *labels: str) -> None:
        family = self._family(metric)
        assert isinstance(family, HistogramMetricFamily)
        bounds = [*map(floatToGoString, spread.bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(spread.counts), strict=True)), sum_value=spread.total)

    def spreads(self, metric: Metric, spreads: Mapping[str, Histogram]) -> None:
        """Add histograms by their single label. Empty ones are left out, because a histogram has many lines."""
        self._family(metric)
        for label, spread in list(spreads.items()):
            if any(spread.counts):
                self.spread(metric, spread, label)

    def sums(self, metric: Metric, count: int, total: float, *labels: str) -> None:
        """Add a summary."""
        family = self._family(metric)
        assert isinstance(family, SummaryMetricFamily)
        family.add_metric(labels, count_value=count, sum_value=total)

    def families(self) -> Iterator[Family]:
        yield from self._families.values()

    def _family(self, metric: Metric) -> Family:
        family = self._families.get(metric.name)
        if family is None:
            family = self._families[metric.name] = _new(metric)
        return family


class Exporter(Collector):
    """The registry of a process: renders an exposition and prometheus-client's metrics of the process itself."""

    def __init__(self, sources: Iterable[Callable[[Exposition], None]] = ()) -> None:
        self._sources = list(sources)
        self._exposition = Exposition()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def add(self, export: Callable[[Exposition], None]) -> None:
        """Add a source of metrics of this process."""
        self._sources.append(export)

    def print(self, exposition: Exposition) -> bytes:
        """Render an exposition. Nothing in here waits, so expositions are never mixed."""
        for export in self._sources:
            export(exposition)
        self._exposition = exposition
        try:
            return generate_latest(self._registry)
        finally:
            self._exposition = Exposition()

    def collect(self) -> Iterable[Family]:
        return self._exposition.families()


def _new(metric: Metric) -> Family:
    match metric.kind:
        case MetricKind.COUNTER:
            return CounterMetricFamily(metric.name.removesuffix("_total"), metric.plain, labels=metric.labels)
        case MetricKind.GAUGE:
            return GaugeMetricFamily(metric.name, metric.plain, labels=metric.labels)
        case MetricKind.HISTOGRAM:
            return HistogramMetricFamily(metric.name, metric.plain, labels=metric.labels)
        case MetricKind.SUMMARY:
            return SummaryMetricFamily(metric.name, metric.plain, labels=metric.labels)
