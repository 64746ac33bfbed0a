"""Write ``docs/reference/metrics.md``: every metric, from its declaration.

python -m tools.metrics_reference > docs/reference/metrics.md
"""

from mainspring.core.runtime.metrics.declared import ALL, STANDARD
from mainspring.core.runtime.metrics.metric import Metric, MetricKind, Scope

_HEAD = """# Metrics

`make reference` generates this page from the code. Every process serves its metrics at `/metrics`, in the text format
of Prometheus. An API and `up` use their own port. A scheduler or worker that runs alone uses the first free port from
`metrics.first_port`, and logs which one. See [monitoring](../operate/monitoring.md).

- **Metrics of a process** count since it started. Add them up over processes with `sum`.
- **Metrics of the fleet and of the store** are the same from every process. Use `max`, not `sum`. They are read at most
  every `metrics.interval` (10 s). If the store does not answer within five seconds, they are missing, and
  `mainspring_store_up` is 0.
- **Queues with very many runs** take longer to count. Their last counts are returned for up to a minute; after that,
  they are missing, and `mainspring_queues_counted` is 0.
- **Labels are bounded.** Each process has labels for the first 100 tasks, queues and tenants (`metrics.max_names`), and
  counts the others as `other`. Of the fleet's queues, those with workers come first, then those with the most runs;
  `other` is the sum of the rest, with the longest lag. `/v1/autoscale` has all queues. Labels for tenants need
  `metrics.tenants`.
- **A key of one tenant** sees the queues of that tenant at an API, and no metric that names tasks, sinks or brokers.
"""

_TITLES = {
    Scope.PROCESS: "Every process",
    Scope.WORK: "Runs that go through a process",
    Scope.WORKER: "Workers",
    Scope.SCHEDULER: "Schedulers",
    Scope.API: "APIs",
    Scope.BROKERS: "Brokers",
    Scope.FLEET: "The fleet",
    Scope.STORE: "The store",
}


def page() -> str:
    parts = [_HEAD]
    for scope, title in _TITLES.items():
        metrics = [metric for metric in ALL if metric.scope is scope]
        if scope is Scope.PROCESS:
            metrics += STANDARD
        parts.append(f"## {title}\n\nReported by {scope.value}.\n\n" + _table(metrics))
    return "\n".join(parts)


def _table(metrics: list[Metric]) -> str:
    lines = ["| metric | kind | unit | labels | meaning |", "|---|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {_unit(metric)} | {labels} | {_meaning(metric)} |")
    return "\n".join(lines) + "\n"


def _unit(metric: Metric) -> str:
    return "runs" if metric.name.endswith("_runs") and metric.kind is MetricKind.HISTOGRAM else metric.unit


def _meaning(metric: Metric) -> str:
    return metric.description + (" Only with `metrics.tenants`." if metric.on_request else "")


if __name__ == "__main__":
    print(page(), end="")
