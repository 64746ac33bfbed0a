"""Writes the dashboards for Grafana, ``deploy/grafana/*.json``: python -m tools.dashboards

A dashboard is a list of panels in rows; everything else in the JSON is the same for all of them.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "deploy" / "grafana"
_WIDTH, _HEIGHT, _ACROSS = 8, 8, 3


class Panel(NamedTuple):
    title: str
    #: Each with what its lines are called.
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    #: From here on it is red.
    red: float | None = None


def _panel(title: str, query: str, legend: str = "", unit: str = "short", red: float | None = None) -> Panel:
    return Panel(title, ((query, legend),), unit, red=red)


def _number(title: str, query: str, unit: str = "short", red: float | None = None) -> Panel:
    return Panel(title, ((query, ""),), unit, "stat", red)


DASHBOARDS: dict[str, tuple[str, list[Panel]]] = {
    "overview": (
        "Mainspring / Overview",
        [
            _number("Store answers", "max(mainspring_store_up)"),
            _number("Schedulers", "max(mainspring_live_schedulers)"),
            _number("Workers", "max(mainspring_live_workers)"),
            _number("Worst lag", "max(mainspring:queue_lag_seconds:max)", "s", 10),
            _number("Dead letters", "max(mainspring_dead_letters)", red=1),
            _number("Budget burn, 1 h", "max(mainspring:error_budget_burn:rate1h)", red=1),
            _panel("Submitted a second", "sum by (task) (mainspring:submitted_runs:rate5m)", "{{task}}", "reqps"),
            _panel("Ended a second", "sum by (state) (mainspring:ended_runs:rate5m)", "{{state}}", "reqps"),
            _panel("Failures by task", "mainspring:failure_ratio:rate5m", "{{task}}", "percentunit", 0.05),
            _panel("Queued", "mainspring:queued_runs:max", "{{queue}}"),
            _panel("Lateness of starts, p99", "mainspring:start_lateness_seconds:p99", "{{queue}}", "s", 10),
            Panel(
                "Budget burn",
                (
                    ("mainspring:error_budget_burn:rate1h", "{{indicator}}, 1 h"),
                    ("mainspring:error_budget_burn:rate6h", "{{indicator}}, 6 h"),
                ),
                red=1,
            ),
            _panel(
                "Requests a second", "sum by (status) (rate(mainspring_api_requests_total[5m]))", "{{status}}", "reqps"
            ),
            _panel("Request time, p99", "mainspring:api_request_seconds:p99", "{{operation}}", "s"),
            _panel("Streams", "sum(mainspring_api_streams)"),
        ],
    ),
    "queues": (
        "Mainspring / Queues",
        [
            _panel("Lag: waiting for a worker", "mainspring:queue_lag_seconds:max", "{{queue}}", "s", 10),
            _panel("Queued", "mainspring:queued_runs:max", "{{queue}}"),
            _panel("Running", "mainspring:running_runs:max", "{{queue}}"),
            Panel(
                "Not queued yet",
                (("max(mainspring_scheduled_runs)", "scheduled"), ("max(mainspring_blocked_runs)", "blocked")),
            ),
            _panel("Come a second", "max by (queue) (mainspring_queue_arrivals_per_second)", "{{queue}}", "reqps"),
            _panel("End a second", "max by (queue) (mainspring_queue_completions_per_second)", "{{queue}}", "reqps"),
            _panel("Lateness of starts, p99", "mainspring:start_lateness_seconds:p99", "{{queue}}", "s", 10),
            Panel(
                "Workers: there and wanted",
                (
                    ("mainspring:queue_workers:max", "{{queue}} there"),
                    ("max by (queue) (mainspring_recommended_workers)", "{{queue}} wanted"),
                ),
            ),
            _panel("Hints not brought", "max by (queue) (mainspring_broker_hints)", "{{queue}}"),
            _panel("Retries a second", "sum by (task) (rate(mainspring_retries_total[5m]))", "{{task}}", "reqps"),
        ],
    ),
    "workers": (
        "Mainspring / Workers",
        [
            _number("Workers", "max(mainspring_live_workers)"),
            _number(
                "Slots in use", "sum(mainspring_worker_used_slots) / sum(mainspring_worker_slots)", "percentunit", 0.95
            ),
            _number("Leases lost, 1 h", "sum(increase(mainspring_worker_lost_leases_total[1h]))", red=1),
            _panel("Attempts a second", "sum by (outcome) (mainspring:attempts:rate5m)", "{{outcome}}", "reqps"),
            _panel("Attempt time, p95", "mainspring:attempt_seconds:p95", "{{task}}", "s"),
            _panel("Slots in use", "sum by (queue) (mainspring_worker_used_slots)", "{{queue}}"),
            _panel("Lease margin", "mainspring_worker_lease_margin_seconds", "{{instance}}", "s"),
            _panel(
                "Outcomes not reported", "sum by (instance) (mainspring_worker_unreported_outcomes)", "{{instance}}"
            ),
            _panel("Outcomes that came too late", "sum(rate(mainspring_stale_outcomes_total[5m]))", unit="reqps"),
            _panel(
                "Runs in a claim",
                "sum(rate(mainspring_store_call_runs_sum{call='claim'}[5m]))"
                " / sum(rate(mainspring_store_call_runs_count{call='claim'}[5m]))",
            ),
            _panel("Child processes", "sum by (instance) (mainspring_worker_child_processes)", "{{instance}}"),
            _panel("Memory", "process_resident_memory_bytes{job='mainspring-workers'}", "{{instance}}", "bytes"),
        ],
    ),
    "schedulers": (
        "Mainspring / Schedulers",
        [
            _number("Schedulers", "max(mainspring_live_schedulers)"),
            _number("Shards without one", "mainspring:unowned_shards:max", red=1),
            _number("Objectives missed", "max(mainspring_missed_objectives)", red=1),
            _panel("Shards", "mainspring_scheduler_shards", "{{instance}}"),
            _panel("Lease margin", "mainspring_scheduler_lease_margin_seconds", "{{instance}}", "s"),
            _panel("Wheel", "mainspring_scheduler_wheel_entries", "{{instance}}"),
            _panel("StageResult a second", "sum(rate(mainspring_staged_runs_total[5m]))", unit="reqps"),
            _panel("Ticks fired a second", "sum(rate(mainspring_fired_ticks_total[5m]))", unit="reqps"),
            _panel(
                "Lateness of fires, p99",
                "histogram_quantile(0.99, sum by (le) (rate(mainspring_fire_lateness_seconds_bucket[5m])))",
                unit="s",
                red=10,
            ),
            Panel(
                "Due and not moved",
                (("max(mainspring_staging_lag_seconds)", "runs"), ("max(mainspring_firing_lag_seconds)", "schedules")),
                "s",
                red=10,
            ),
            _panel("Reaped a second", "sum by (why) (rate(mainspring_reaped_runs_total[5m]))", "{{why}}", "reqps"),
            _panel("Clocks", "mainspring_process_clock_offset_seconds", "{{instance}}", "s"),
            _panel("Events behind", "max by (sink) (mainspring_events_lag_seconds)", "{{sink}}", "s", 300),
            _panel(
                "Events sent a second", "sum by (sink) (rate(mainspring_events_sent_total[5m]))", "{{sink}}", "reqps"
            ),
        ],
    ),
    "store": (
        "Mainspring / Store",
        [
            _number("Answers", "max(mainspring_store_up)"),
            _number(
                "Connections",
                "max(mainspring_store_connections / mainspring_store_connections_limit)",
                "percentunit",
                0.85,
            ),
            _number("Oldest transaction", "max(mainspring_store_oldest_transaction_seconds)", "s", 300),
            _panel("Calls, p99", "mainspring:store_call_seconds:p99", "{{call}}", "s"),
            _panel(
                "Calls a second", "sum by (call) (rate(mainspring_store_call_seconds_count[5m]))", "{{call}}", "reqps"
            ),
            _panel(
                "Calls that failed",
                "sum by (call) (rate(mainspring_store_call_failures_total[5m]))",
                "{{call}}",
                "reqps",
            ),
            _panel(
                "Dead rows", "max by (server, table) (mainspring_store_dead_rows)", "{{server}} {{table}}", red=100_000
            ),
            _panel("Live rows", "max by (server, table) (mainspring_store_live_rows)", "{{server}} {{table}}"),
            _panel(
                "Vacuumed ago",
                "max by (server, table) (mainspring_store_vacuum_age_seconds)",
                "{{server}} {{table}}",
                "s",
            ),
            _panel("Size", "max by (server) (mainspring_store_size_bytes)", "{{server}}", "bytes"),
            _panel("Room on disk", "min by (server) (mainspring_store_disk_free_bytes)", "{{server}}", "bytes"),
            _panel("Log kept for replicas", "max by (server) (mainspring_store_kept_wal_bytes)", "{{server}}", "bytes"),
            _panel(
                "Standbys behind",
                "max by (server) (mainspring_store_replication_lag_seconds)",
                "{{server}}",
                "s",
                red=60,
            ),
            _panel("Transaction ids", "max by (server) (mainspring_store_transaction_id_age)", "{{server}}", red=1e9),
            Panel(
                "Pools",
                (
                    ("sum by (state) (mainspring_pool_connections)", "{{state}}"),
                    ("sum(mainspring_pool_waiting_calls)", "waiting"),
                ),
            ),
            _panel(
                "Broker round trips",
                "sum by (broker) (rate(mainspring_dispatch_round_trip_seconds_sum[5m]))"
                " / sum by (broker) (rate(mainspring_dispatch_round_trip_seconds_count[5m]))",
                "{{broker}}",
                "s",
            ),
        ],
    ),
}


def render(name: str) -> str:
    title, panels = DASHBOARDS[name]
    source = {"type": "prometheus", "uid": "${source}"}
    made = {
        "uid": f"mainspring-{name}",
        "title": title,
        "tags": ["mainspring"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}]},
        "links": [{"type": "dashboards", "title": "Mainspring", "tags": ["mainspring"], "asDropdown": True}],
        "panels": [_json(number, panel, source) for number, panel in enumerate(panels)],
    }
    return json.dumps(made, indent=1) + "\n"


def _json(number: int, panel: Panel, source: dict[str, str]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red is not None:
        steps.append({"color": "red", "value": panel.red})
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "datasource": source,
        "gridPos": {"x": number % _ACROSS * _WIDTH, "y": number // _ACROSS * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "targets": [
            {"refId": chr(65 + place), "datasource": source, "expr": query, "legendFormat": legend or "__auto"}
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard}.json").write_text(render(dashboard))
