"""Metrics of real processes in a real Prometheus, our rules, and alerts that fire in Alertmanager and resolve."""

import asyncio
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mainspring.core.runtime.metrics.declared import ALL, STANDARD
from mainspring.core.runtime.metrics.metric import MetricKind, Scope
from tests.support.load import PAUSE_SECONDS
from tests.support.monitoring import Monitoring
from tests.support.processes import kill
from tests.support.waiting import eventually
from tests.support.watched_cluster import Cluster, a_cluster

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
pytestmark = [pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("system")]


def run(*command: str | Path, cwd: Path | None = None, given: str | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def promtool(address_of: Callable[[str], str]) -> str:
    return f"{address_of('prometheus')}/promtool"


@pytest.fixture(scope="session")
def amtool(address_of: Callable[[str], str]) -> str:
    return f"{address_of('alertmanager')}/amtool"


def test_promtool_finds_nothing_wrong_with_rules_and_configuration(promtool: str) -> None:
    run(promtool, "check", "rules", "--lint-fatal", *sorted((DEPLOY / "prometheus").glob("*.rules.yml")))
    run(promtool, "check", "config", DEPLOY / "prometheus" / "prometheus.yml")


def test_every_alert_fires_and_resolves(promtool: str) -> None:
    run(promtool, "test", "rules", DEPLOY / "prometheus" / "tests" / "alerts.test.yml")
    tests = yaml.safe_load((DEPLOY / "prometheus" / "tests" / "alerts.test.yml").read_text())["tests"]
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.rules.yml").read_text())["groups"]
    assert {test["name"] for test in tests} == {rule["alert"] for group in rules for rule in group["rules"]}
    for test in tests:
        first, *between, last = [
            bool(look["exp_alerts"]) for look in test["alert_rule_test"] if look["alertname"] == test["name"]
        ]
        assert (first, all(between), last) == (False, True, False), test["name"]
        assert between


def test_the_error_budget_counts_submits_and_does_not_page_for_one_failure_of_ten(promtool: str) -> None:
    run(promtool, "test", "rules", DEPLOY / "prometheus" / "tests" / "budget.test.yml")


@pytest.mark.parametrize("never", ["vector(1) > 2", "vector(1)"])
def test_promtool_finds_alerts_that_never_or_always_fire(promtool: str, tmp_path: Path, never: str) -> None:
    """Without this, a clean run of promtool would prove nothing."""
    (tmp_path / "tests").mkdir()
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.rules.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = never
    (tmp_path / "alerts.rules.yml").write_text(yaml.safe_dump(rules))
    (tmp_path / "recording.rules.yml").write_text((DEPLOY / "prometheus" / "recording.rules.yml").read_text())
    tests = (DEPLOY / "prometheus" / "tests" / "alerts.test.yml").read_text()
    (tmp_path / "tests" / "alerts.test.yml").write_text(tests)
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "tests" / "alerts.test.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    blamed = set(re.findall(r"alertname: (\w+)", done.stdout + done.stderr))
    assert blamed == {test["name"] for test in yaml.safe_load(tests)["tests"]}


def test_amtool_finds_nothing_wrong_with_the_configuration(amtool: str) -> None:
    file = DEPLOY / "alertmanager" / "alertmanager.yml"
    run(amtool, "check-config", file)
    route = run(amtool, "config", "routes", "test", f"--config.file={file}", "severity=page")
    assert route.splitlines()[0] == "pages"


@pytest.mark.parametrize("queues", [["mail"], ["mail", "video"]])
def test_a_page_names_the_problem_of_every_queue(amtool: str, tmp_path: Path, queues: list[str]) -> None:
    receivers = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())["receivers"]
    [template] = [one["pagerduty_configs"][0]["description"] for one in receivers if one["name"] == "pages"]
    alerts = [{"status": "firing", "annotations": {"summary": f"Runs of queue {queue} wait"}} for queue in queues]
    group = {"status": "firing", "groupLabels": {"alertname": "MainspringQueueLag"}, "alerts": alerts}
    # Alertmanager passes the annotations that all alerts have in common.
    group["commonAnnotations"] = alerts[0]["annotations"] if len(queues) == 1 else {}
    (data := tmp_path / "data.json").write_text(json.dumps(group))
    (none := tmp_path / "none.tmpl").touch()
    said = run(
        amtool,
        "template",
        "render",
        f"--template.glob={none}",
        f"--template.text={template}",
        f"--template.data={data}",
    )
    assert said.strip() == " ".join(["MainspringQueueLag:", *(f"Runs of queue {queue} wait." for queue in queues)])


#: The metrics that each role has.
_OF_ROLE = {
    "api": {Scope.PROCESS, Scope.WORK, Scope.API, Scope.FLEET},
    "scheduler": {Scope.PROCESS, Scope.WORK, Scope.SCHEDULER, Scope.FLEET, Scope.STORE},
    "worker": {Scope.PROCESS, Scope.WORK, Scope.WORKER},
}


@pytest.mark.postgres
async def test_every_metric_of_every_role_is_declared_and_passes_the_lint(
    postgres_database: str, tmp_path: Path, promtool: str
) -> None:
    declared = {metric.name: metric for metric in (*ALL, *STANDARD)}
    seen = set[str]()
    async with a_cluster(
        postgres_database, tmp_path, MAINSPRING_METRICS_TENANTS="true", MAINSPRING_TRACING_ENABLED="true"
    ) as cluster:
        await cluster.submit(5)

        async def counted() -> bool:
            counter = 'mainspring_ended_runs_total{state="succeeded",task="send"} 5.0'
            return counter in await cluster.metrics("worker")

        async def compared() -> bool:
            # A process reports its clock with its first comparison after its session has begun.
            return "mainspring_clock_offset_seconds{" in "".join([await cluster.metrics(role) for role in _OF_ROLE])

        await eventually(counted, cluster.processes.logs)
        await eventually(compared, cluster.processes.logs)
        for role, whose in _OF_ROLE.items():
            text = await cluster.metrics(role)
            assert run(promtool, "check", "metrics", given=text) == "", role
            types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
            assert types.keys() <= declared.keys()
            for name, kind in types.items():
                assert declared[name].kind == MetricKind(kind)
                assert declared[name].scope in whose, (role, name)
            seen |= types.keys()
    # The others need a sink, a broker, requests by Kafka, an archive, a log store, a standby, more rights in
    # PostgreSQL, or SQLite. A table that was never vacuumed has no age.
    missing = {metric.name for metric in (*ALL, *STANDARD)} - seen - {"mainspring_store_vacuum_age_seconds"}
    elsewhere = {metric.name for metric in ALL if metric.scope is Scope.BROKERS}
    assert missing == elsewhere | {
        "mainspring_archive_failing",
        "mainspring_archive_waiting_parts",
        "mainspring_broker_hints",
        "mainspring_events_lag_seconds",
        "mainspring_ingest_made_total",
        "mainspring_ingest_refused_total",
        "mainspring_ingest_waiting_requests",
        "mainspring_run_logs_failed_total",
        "mainspring_run_logs_taken_total",
        "mainspring_run_logs_waiting_seconds",
        "mainspring_store_disk_free_bytes",
        "mainspring_store_oldest_transaction_seconds",
        "mainspring_store_replication_lag_bytes",
        "mainspring_store_replication_lag_seconds",
    }


@pytest.mark.postgres
async def test_alerts_fire_and_resolve_for_a_failing_task_and_a_dead_worker(
    postgres_database: str, tmp_path: Path, address_of: Callable[[str], str]
) -> None:
    async with a_cluster(postgres_database, tmp_path) as cluster:
        (watching := tmp_path / "watching").mkdir()
        async with Monitoring(watching, address_of, cluster.targets) as monitoring:
            await monitoring.until(lambda: monitoring.query("mainspring_live_workers == 1"), "one worker is live")
            assert "MainspringFailureRate" not in await monitoring.alerts()
            # An increase is seen only if the counter was scraped before it.
            counter = 'mainspring_ended_runs_total{state="failed",task="send"} == 0'
            await monitoring.until(lambda: monitoring.query(counter), "the worker was scraped")

            # One failure is enough if no run succeeds.
            (broken := tmp_path / "broken").touch()
            await cluster.submit(1)
            alert = await monitoring.until_fires("MainspringTaskFailing")
            assert alert["labels"]["task"] == "send"

            failing = asyncio.create_task(_submit_on(cluster))
            alert = await monitoring.until_fires("MainspringFailureRate")
            assert alert["labels"]["task"] == "send"
            assert alert["annotations"]["runbook_url"].endswith("/docs/operate/runbooks/failure-rate.html")
            broken.unlink()
            await monitoring.until_resolved("MainspringFailureRate")
            await monitoring.until_resolved("MainspringTaskFailing")
            failing.cancel()

            kill(cluster.workers[0])
            down = await monitoring.until_fires("MainspringTargetDown")
            assert down["labels"]["job"] == "mainspring-worker"
            without = await monitoring.until_fires("MainspringQueueWithoutWorkers")
            assert without["labels"]["queue"] == "mail"
            cluster.start_worker(0)
            for name in ("MainspringTargetDown", "MainspringQueueWithoutWorkers"):
                await monitoring.until_resolved(name)


async def _submit_on(cluster: Cluster) -> None:
    while True:
        await cluster.submit(3)
        await asyncio.sleep(4 * PAUSE_SECONDS)
