"""Metrics: counting, bounded labels, and the declared names."""

from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as some
from prometheus_client.parser import text_string_to_metric_families

from mainspring.config.loading import load
from mainspring.config.sections.monitoring import MetricsSection
from mainspring.config.settings import Settings
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MILLISECOND, SECOND
from mainspring.core.model.runs.completion import Completion
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun, Outcome, RunState
from mainspring.core.ports.storage.upkeep import UnattemptedRuns
from mainspring.core.runtime.metrics import declared
from mainspring.core.runtime.metrics.counters import OTHER, BoundedNames, Histogram
from mainspring.core.runtime.metrics.declared import ALL, STANDARD
from mainspring.core.runtime.metrics.exposition import Exporter, Exposition
from mainspring.core.runtime.metrics.metric import MetricKind
from mainspring.core.runtime.metrics.run_metrics import RunMetrics
from tests.support.builders import a_held_run, a_run
from tools import metrics_reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


class Attempt(NamedTuple):
    held: HeldRun
    came_at: int
    ended_at: int


def read_samples(metrics: RunMetrics) -> dict[tuple[str, ...], float]:
    """Every sample by its name and its label values, in alphabetical order of the labels."""
    text = Exporter([metrics.export]).print(Exposition()).decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@given(some.lists(some.integers(0, 20 * SECOND), max_size=60))
def test_values_added_together_count_as_if_added_one_by_one(values: list[int]) -> None:
    together, alone = Histogram((0.001, 0.5, 1, 10), SECOND), Histogram((0.001, 0.5, 1, 10), SECOND)
    for value in values:
        alone.add(value)
    together.add_all(list(values))
    assert together.counts == alone.counts
    assert together.total == pytest.approx(alone.total)


def test_a_value_on_the_bound_of_a_bucket_is_in_that_bucket() -> None:
    spread = Histogram((1, 10), SECOND)
    spread.add(10 * SECOND)
    assert spread.counts == [0, 1, 0]


def test_label_values_beyond_the_bound_share_one_name() -> None:
    names = BoundedNames(2)
    assert [names[name] for name in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]
    assert len(names) == 2


def test_attempts_are_counted_by_task_and_outcome() -> None:
    metrics = RunMetrics()
    held = a_held_run()

    def end(outcome: Outcome, state: RunState) -> Completion:
        return Completion(run=held.id, fence=held.fence, outcome=outcome, state=state)

    metrics.completed(
        [
            (Attempt(held, 0, 20 * MILLISECOND), end(Outcome.SUCCESS, RunState.SUCCEEDED)),
            (Attempt(held, 0, SECOND), end(Outcome.SUCCESS, RunState.SUCCEEDED)),
            (Attempt(held, 0, SECOND), end(Outcome.ERROR, RunState.SCHEDULED)),
            (Attempt(held, 0, SECOND), end(Outcome.ERROR, RunState.FAILED)),
            (Attempt(held, 0, SECOND), end(Outcome.RELEASED, RunState.QUEUED)),
        ]
    )
    found = read_samples(metrics)
    assert found["mainspring_attempts_total", "success", "greet"] == 2
    assert found["mainspring_attempts_total", "error", "greet"] == 2
    assert found["mainspring_attempts_total", "released", "greet"] == 1
    assert found["mainspring_ended_runs_total", "succeeded", "greet"] == 2
    assert found["mainspring_ended_runs_total", "failed", "greet"] == 1
    assert ("mainspring_ended_runs_total", "queued", "greet") not in found
    assert found["mainspring_retries_total", "greet"] == 1
    assert found["mainspring_attempt_seconds_count", "greet"] == 5
    assert found["mainspring_attempt_seconds_bucket", "0.025", "greet"] == 1


def test_counters_of_the_tasks_of_a_worker_start_at_zero() -> None:
    """Prometheus only sees growth between two scrapes, so a series must not start at 1."""
    metrics = RunMetrics(most_names=2)
    metrics.offers(["nightly", "greet", "one too many"])
    ended = {
        labels: value for labels, value in read_samples(metrics).items() if labels[0] == "mainspring_ended_runs_total"
    }
    assert ended == {
        ("mainspring_ended_runs_total", state, task): 0
        for state in ("succeeded", "failed")
        for task in ("nightly", "greet", OTHER)
    }


def test_runs_that_ended_without_an_attempt_are_counted_by_task() -> None:
    metrics = RunMetrics(most_names=2)
    metrics.submitted([a_submitted_run("mail"), a_submitted_run("report")])
    metrics.unattempted(
        [
            UnattemptedRuns(task=task, state=state, runs=3)
            for task in ("mail", "one", "another")
            for state in (RunState.CANCELLED, RunState.SKIPPED)
        ]
    )
    found = read_samples(metrics)
    assert found["mainspring_ended_runs_total", "cancelled", "mail"] == 3
    assert found["mainspring_ended_runs_total", "skipped", OTHER] == 6


def test_lateness_counts_from_the_time_an_attempt_could_have_started() -> None:
    metrics = RunMetrics()
    held = [a_held_run() for _ in range(3)]
    for run, due, ready in zip(held, (0, 0, 60), (0, 60, 30), strict=True):
        run.due, run.ready_at, run.started_at = due * SECOND, ready * SECOND, 61 * SECOND
    metrics.claimed(held)
    found = read_samples(metrics)
    assert found["mainspring_start_lateness_seconds_sum", "default"] == 61 + 1 + 1


def test_tasks_beyond_the_bound_are_counted_as_other() -> None:
    metrics = RunMetrics(most_names=2)
    metrics.submitted([a_submitted_run(f"task-{number}") for number in range(5)])
    found = read_samples(metrics)
    assert found["mainspring_submitted_runs_total", "task-1"] == 1
    assert found["mainspring_submitted_runs_total", OTHER] == 3


@pytest.mark.parametrize("tenants", [False, True])
def test_tenants_are_labels_only_on_request(tenants: bool) -> None:
    metrics = RunMetrics(tenants=tenants)
    metrics.submitted([a_submitted_run("t", tenant="acme")])
    found = read_samples(metrics)
    assert (("mainspring_tenant_submitted_runs_total", "acme") in found) is tenants
    assert any("acme" in labels for labels in found) is tenants


def a_submitted_run(task: str, tenant: str = "default") -> NewRun:
    return a_run(task=task, tenant=tenant)


def test_metric_names_follow_the_conventions_of_prometheus() -> None:
    names = [metric.name for metric in ALL]
    assert len(set(names)) == len(names)
    for metric in ALL:
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER), metric.name
        assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM), metric.name
        assert metric.description.endswith("."), metric.name


def test_every_label_has_a_bounded_set_of_values() -> None:
    bounded = {
        *("version", "roles", "state", "outcome", "call", "why", "change", "operation", "status", "kind"),
        # One value for each configured server, sink or table.
        *("broker", "sink", "server", "table"),
        # Values beyond ``metrics.max_names`` are counted as other.
        *("task", "queue", "tenant"),
    }
    assert {label for metric in ALL for label in metric.labels} == bounded
    assert all(metric.on_request for metric in ALL if "tenant" in metric.labels)


def test_the_reference_is_current() -> None:
    assert PAGE.read_text() == metrics_reference.page(), "make reference"
    assert all(f"`{metric.name}`" in PAGE.read_text() for metric in (*ALL, *STANDARD))


def test_help_texts_contain_no_markdown() -> None:
    exposition = Exposition()
    exposition.put(declared.BEHIND, 1, "kafka")
    text = Exporter().print(exposition).decode()
    assert (
        "# HELP mainspring_events_lag_seconds Age of the oldest event that a sink has not received; 0 if it has all."
        in text
    )


def test_metrics_beyond_loopback_need_a_token(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="the endpoint has no authentication"):
        load({"metrics.host": "0.0.0.0"}, {})
    (tmp_path / "token").write_text("secret\n")
    settings = load({"metrics.host": "0.0.0.0", "metrics.token_file": str(tmp_path / "token")}, {})
    assert settings.metrics.secret() == "secret"
    assert "geheim" not in repr(load({"metrics.token": "geheim"}, {}))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (MetricsSection(first_port=7200), "is before metrics.first_port"),
        (MetricsSection(token="a", token_file="b"), "one of them"),
    ],
)
def test_invalid_metrics_settings_are_rejected(wrong: MetricsSection, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        Settings(metrics=wrong).check()
