"""Counting: what a figure is, that labels have a bound, and that what is told is what is declared."""

from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as some
from prometheus_client.parser import text_string_to_metric_families

from mainspring.domain.errors import Invalid
from mainspring.domain.instant import MILLISECOND, SECOND
from mainspring.domain.run import HeldRun, NewRun, Outcome, RunState, Settlement
from mainspring.ports.store import Unattempted
from mainspring.runtime.metrics import declared
from mainspring.runtime.metrics.book import Book, Press
from mainspring.runtime.metrics.declared import ALL, STANDARD, Kind
from mainspring.runtime.metrics.figures import Figures
from mainspring.runtime.metrics.tally import OTHER, Names, Spread
from mainspring.sections import MetricsSection
from mainspring.settings import Settings, load
from tests.support.builders import a_held_run, a_run
from tools import metrics_reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


class Attempt(NamedTuple):
    held: HeldRun
    came_at: int
    ended_at: int


def told(figures: Figures) -> dict[tuple[str, ...], float]:
    """Every sample, by its name and the values of its labels, as these stand in the alphabet."""
    text = Press([figures.tell]).print(Book()).decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@given(some.lists(some.integers(0, 20 * SECOND), max_size=60))
def test_values_that_come_together_count_as_if_they_came_one_by_one(values: list[int]) -> None:
    together, alone = Spread((0.001, 0.5, 1, 10), SECOND), Spread((0.001, 0.5, 1, 10), SECOND)
    for value in values:
        alone.add(value)
    together.add_all(list(values))
    assert together.counts == alone.counts
    assert together.total == pytest.approx(alone.total)


def test_a_value_on_a_bound_is_within_it() -> None:
    spread = Spread((1, 10), SECOND)
    spread.add(10 * SECOND)
    assert spread.counts == [0, 1, 0]


def test_names_beyond_the_bound_are_one() -> None:
    names = Names(2)
    assert [names[name] for name in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]
    assert len(names) == 2


def test_attempts_are_counted_by_task_and_outcome() -> None:
    figures = Figures()
    held = a_held_run()

    def end(outcome: Outcome, state: RunState) -> Settlement:
        return Settlement(run=held.id, fence=held.fence, outcome=outcome, state=state)

    figures.settled(
        [
            (Attempt(held, 0, 20 * MILLISECOND), end(Outcome.SUCCESS, RunState.SUCCEEDED)),
            (Attempt(held, 0, SECOND), end(Outcome.SUCCESS, RunState.SUCCEEDED)),
            (Attempt(held, 0, SECOND), end(Outcome.ERROR, RunState.SCHEDULED)),
            (Attempt(held, 0, SECOND), end(Outcome.ERROR, RunState.FAILED)),
            (Attempt(held, 0, SECOND), end(Outcome.RELEASED, RunState.QUEUED)),
        ]
    )
    found = told(figures)
    assert found["mainspring_attempts_total", "success", "greet"] == 2
    assert found["mainspring_attempts_total", "error", "greet"] == 2
    assert found["mainspring_attempts_total", "released", "greet"] == 1
    assert found["mainspring_ended_runs_total", "succeeded", "greet"] == 2
    assert found["mainspring_ended_runs_total", "failed", "greet"] == 1
    assert ("mainspring_ended_runs_total", "queued", "greet") not in found
    assert found["mainspring_retries_total", "greet"] == 1
    assert found["mainspring_attempt_seconds_count", "greet"] == 5
    assert found["mainspring_attempt_seconds_bucket", "0.025", "greet"] == 1


def test_what_a_worker_offers_is_counted_from_nothing() -> None:
    """Prometheus sees growth between two scrapes alone: not that of a series that begins with 1."""
    figures = Figures(most_names=2)
    figures.offers(["nightly", "greet", "one too many"])
    ended = {labels: value for labels, value in told(figures).items() if labels[0] == "mainspring_ended_runs_total"}
    assert ended == {
        ("mainspring_ended_runs_total", state, task): 0
        for state in ("succeeded", "failed")
        for task in ("nightly", "greet", OTHER)
    }


def test_runs_that_ended_without_an_attempt_are_counted_by_task_as_all_others() -> None:
    figures = Figures(most_names=2)
    figures.submitted([_submitted("mail"), _submitted("report")])
    figures.unattempted(
        [
            Unattempted(task=task, state=state, runs=3)
            for task in ("mail", "one", "another")
            for state in (RunState.CANCELLED, RunState.SKIPPED)
        ]
    )
    found = told(figures)
    assert found["mainspring_ended_runs_total", "cancelled", "mail"] == 3
    assert found["mainspring_ended_runs_total", "skipped", OTHER] == 6


def test_an_attempt_is_late_from_when_it_could_have_started() -> None:
    figures = Figures()
    held = [a_held_run() for _ in range(3)]
    for run, due, ready in zip(held, (0, 0, 60), (0, 60, 30), strict=True):
        run.due, run.ready_at, run.started_at = due * SECOND, ready * SECOND, 61 * SECOND
    figures.claimed(held)
    found = told(figures)
    assert found["mainspring_start_lateness_seconds_sum", "default"] == 61 + 1 + 1


def test_tasks_beyond_the_bound_are_counted_as_other() -> None:
    figures = Figures(most_names=2)
    figures.submitted([_submitted(f"task-{number}") for number in range(5)])
    found = told(figures)
    assert found["mainspring_submitted_runs_total", "task-1"] == 1
    assert found["mainspring_submitted_runs_total", OTHER] == 3


@pytest.mark.parametrize("tenants", [False, True])
def test_tenants_are_told_on_request_alone(tenants: bool) -> None:
    figures = Figures(tenants=tenants)
    figures.submitted([_submitted("t", tenant="acme")])
    found = told(figures)
    assert (("mainspring_tenant_submitted_runs_total", "acme") in found) is tenants
    assert any("acme" in labels for labels in found) is tenants


def _submitted(task: str, tenant: str = "default") -> NewRun:
    return a_run(task=task, tenant=tenant)


def test_names_and_units_are_as_prometheus_wants_them() -> None:
    names = [metric.name for metric in ALL]
    assert len(set(names)) == len(names)
    for metric in ALL:
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM), metric.name
        assert metric.says.endswith("."), metric.name


def test_no_label_is_without_a_bound() -> None:
    bounded = {
        *("version", "roles", "state", "outcome", "call", "why", "change", "operation", "status", "kind"),
        # One for each that somebody has set up …
        *("engine", "sink", "server", "table"),
        # … and those that are counted as other beyond metrics.names: test_names_of_all_kinds_have_a_bound tries it.
        *("task", "queue", "tenant"),
    }
    assert {label for metric in ALL for label in metric.labels} == bounded
    assert all(metric.on_request for metric in ALL if "tenant" in metric.labels)


def test_the_reference_is_current() -> None:
    assert PAGE.read_text() == metrics_reference.page(), "make reference"
    assert all(f"`{metric.name}`" in PAGE.read_text() for metric in (*ALL, *STANDARD))


def test_what_is_told_says_what_it_means_without_markdown() -> None:
    book = Book()
    book.put(declared.BEHIND, 1, "kafka")
    text = Press().print(book).decode()
    assert (
        "# HELP mainspring_events_lag_seconds How old the oldest event is that a sink has not got; 0: it has all."
        in text
    )


def test_metrics_beyond_loopback_need_a_token(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="nobody is asked who they are"):
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
def test_settings_that_cannot_be_meant_are_refused(wrong: MetricsSection, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        Settings(metrics=wrong).check()
