"""docs/operations/availability.md: its sums are right, and its seconds are those that were measured."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mainspring.domain.capacity import YEAR_SECONDS, allowed_downtime

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operations" / "availability.md").read_text()
FAILOVER = (DOCS / "operations" / "failover.md").read_text()


def cells(text: str) -> list[list[str]]:
    """The rows of a table below its heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def table(name: str) -> list[list[str]]:
    found = re.search(f"<!-- {name}: begin -->(.*)<!-- {name}: end -->", PAGE, re.DOTALL)
    assert found is not None
    return cells(found[1])


def number(text: str) -> float:
    return float(re.sub(r"[*,]|( %)$", "", text))


def worst() -> dict[tuple[str, str], float]:
    """By fault and by who grants shards, in seconds."""
    found = re.search("<!-- chaos: begin -->(.*)<!-- chaos: end -->", FAILOVER, re.DOTALL)
    assert found is not None
    return {(row[0], row[1]): float(row[-1].removesuffix(" s")) for row in cells(found[1])}


def test_what_mends_itself_adds_up() -> None:
    *rows, last = table("by itself")
    for row in rows:
        assert number(row[2]) * number(row[3]) == pytest.approx(number(row[4])), row[0]
    assert sum(number(row[4]) for row in rows) == pytest.approx(number(last[4]))


def test_what_needs_people_adds_up() -> None:
    *rows, last = table("by people")
    for row in rows:
        assert number(row[1]) * number(row[2]) * 60 == number(row[3]), row[0]
    assert sum(number(row[3]) for row in rows) == number(last[3])


def test_each_fault_takes_as_long_as_the_worst_that_was_measured() -> None:
    measured = worst()
    faults = set()
    for row in table("by itself")[:-1]:
        fault = re.fullmatch(r"`([a-z-]+)`", row[1])
        if fault is None:
            # With Patroni it was measured on another page.
            assert row[1] == "[Patroni](postgresql.md)"
            assert f"| {row[3]}, " in (DOCS / "operations" / "postgresql.md").read_text()
            continue
        assert number(row[3]) == measured[fault[1], "store"], fault[1]
        faults.add(fault[1])
    # That a worker hears nothing while it can be heard took no longer than both.
    assert {fault for fault, who in measured if who == "store"} - faults == {"cut-worker-one-way"}


def test_with_another_engine_each_takes_as_long_as_was_measured() -> None:
    measured = worst()
    rows = table("engines")
    assert rows
    for row in rows:
        assert number(row[4]) == measured[row[1].strip("`"), row[2]], row
        assert number(row[3]) * number(row[4]) == pytest.approx(number(row[5])), row
    assert max(seconds for (fault, _), seconds in measured.items() if fault == "promote-standby") == 10.3
    assert "up to 10.3 s" in PAGE


def test_the_sums_are_set_against_four_nines() -> None:
    alone, people = number(table("by itself")[-1][4]), number(table("by people")[-1][3])
    allowed = allowed_downtime(99.99)
    found = {
        row[0]: row[1:] for row in (line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|"))
    }
    shown = {name.strip(): [cell.strip() for cell in cells] for name, cells in found.items()}
    for name, seconds in (("what mends itself", alone), ("with people", alone + people), ("99.99 %", allowed)):
        assert number(shown[name][0]) == pytest.approx(seconds)
        assert number(shown[name][1]) == pytest.approx(100 - seconds / YEAR_SECONDS * 100, abs=0.00005)
    assert number(shown["left"][0]) == pytest.approx(allowed - alone - people)
    assert alone + people < allowed
    assert f"**{allowed:,.0f} s**" in PAGE


def test_every_metric_that_is_named_exists() -> None:
    named = set(re.findall(r"mainspring_\w+", PAGE))
    known = set(re.findall(r"mainspring_\w+", (DOCS / "reference" / "metrics.md").read_text()))
    assert named
    assert named <= known


def test_the_alert_rules_can_be_read_and_name_submits_as_the_api_does() -> None:
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    rules = yaml.safe_load(text)["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules] == [
        "MainspringSubmitsUseUpTheErrorBudget",
        "MainspringLagUsesUpTheErrorBudget",
    ]
    operations = re.findall(r'operation=~"(.*?)"', text)
    names = re.findall(r'"operationId": "(\w+)"', (DOCS / "reference" / "openapi.json").read_text())
    for operation in set(operations):
        assert {name for name in names if re.fullmatch(operation, name)} == {"create_job", "create_jobs"}


TRIAL = """
rule_files: [error-budget.yaml]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - series: 'mainspring_api_requests_total{operation="create_job",status="201"}'
        values: '0+1500x400'
      - series: 'mainspring_api_requests_total{operation="create_jobs",status="503"}'
        values: '0x200 0+30x40 1200x160'
      - series: 'mainspring_api_requests_total{operation="list_jobs",status="500"}'
        values: '0+1000x400'
      - series: 'mainspring_queue_lag_seconds{queue="a"}'
        values: '0x100 12x3 0x300'
    alert_rule_test:
      - {eval_time: 40m, alertname: MainspringSubmitsUseUpTheErrorBudget, exp_alerts: []}
      - eval_time: 60m
        alertname: MainspringSubmitsUseUpTheErrorBudget
        exp_alerts:
          - exp_labels: {severity: page}
            exp_annotations: {summary: "Submits fail so often that a month's error budget is gone in two days"}
      - {eval_time: 80m, alertname: MainspringSubmitsUseUpTheErrorBudget, exp_alerts: []}
      - {eval_time: 20m, alertname: MainspringLagUsesUpTheErrorBudget, exp_alerts: []}
      - eval_time: 26m
        alertname: MainspringLagUsesUpTheErrorBudget
        exp_alerts:
          - exp_labels: {severity: page}
            exp_annotations: {summary: "Runs start so late that a month's error budget is gone in two days"}
      - {eval_time: 40m, alertname: MainspringLagUsesUpTheErrorBudget, exp_alerts: []}
"""


def test_the_alerts_start_while_the_budget_is_used_up_and_end_after(
    tmp_path: Path, address_of: Callable[[str], str]
) -> None:
    promtool = f"{address_of('prometheus')}/promtool"
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "error-budget.yaml").write_text(text)
    (tmp_path / "trial.yaml").write_text(TRIAL)
    done = subprocess.run(
        [promtool, "test", "rules", "trial.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
