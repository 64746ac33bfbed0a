"""Writes ``docs/reference/metrics.md``: every metric, from where they are declared.

python -m tools.metrics_reference > docs/reference/metrics.md
"""

from mainspring.core.runtime.metrics.declared import ALL, STANDARD, Kind, Metric, Whose

_HEAD = """# Metrics

Made of the code by `make reference`: what is not here is not told. All are in the text format of Prometheus, at
`/metrics` of every process: of an API, or of `up`, on its own port; of a scheduler or a worker that is started alone on
the first free port from `metrics.first_port`, which it names in its log. [How to watch a
fleet](../operate/monitoring.md).

- What is of a process counts since it started. Add up over processes with `sum`.
- What is of the fleet or of the store is the same from whomever you ask: use `max`, not `sum`. It is read at most every
  `metrics.every` (10 s), however often somebody asks. When the store gives no answer for five seconds these figures are
  missing, and `mainspring_store_up` is 0. Queues with very many runs take longer to count: then they are told as they
  were a moment ago, and are missing when that is more than a minute: `mainspring_queues_counted` is 0.
- Labels are bounded: of tasks, queues and tenants each process tells the first 100 apart (`metrics.names`) and counts
  the others as `other`. Of the queues of the fleet those are told apart that have workers, then those with the most
  runs; `other` is the sum of the rest, with the longest lag of any. `/v1/autoscale` has all of them. Nothing is by
  tenant unless `metrics.tenants` says so.
- Who asks an API and is bound to a tenant sees the queues of that tenant, and nothing that names tasks,
  sinks or engines.
"""

_TITLES = {
    Whose.PROCESS: "Every process",
    Whose.WORK: "Runs that go through a process",
    Whose.WORKER: "Workers",
    Whose.SCHEDULER: "Schedulers",
    Whose.API: "APIs",
    Whose.ENGINES: "Engines",
    Whose.FLEET: "The fleet",
    Whose.STORE: "The store",
}


def page() -> str:
    parts = [_HEAD]
    for whose, title in _TITLES.items():
        metrics = [metric for metric in ALL if metric.whose is whose]
        if whose is Whose.PROCESS:
            metrics += STANDARD
        parts.append(f"## {title}\n\nTold by {whose.value}.\n\n" + _table(metrics))
    return "\n".join(parts)


def _table(metrics: list[Metric]) -> str:
    lines = ["| metric | kind | unit | labels | meaning |", "|---|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {_unit(metric)} | {labels} | {_meaning(metric)} |")
    return "\n".join(lines) + "\n"


def _unit(metric: Metric) -> str:
    return "runs" if metric.name.endswith("_runs") and metric.kind is Kind.HISTOGRAM else metric.unit


def _meaning(metric: Metric) -> str:
    return metric.says + (" Only with `metrics.tenants`." if metric.on_request else "")


if __name__ == "__main__":
    print(page(), end="")
