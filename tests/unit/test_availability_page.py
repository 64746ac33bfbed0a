"""docs/operate/availability.md: the sums are right, and the durations are the measured ones."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operate" / "availability.md").read_text()
#: By name. A recording rule exists once per indicator.
RULES: dict[str, list[dict[str, Any]]] = {}
for file in sorted((DOCS.parent / "deploy" / "prometheus").glob("*.rules.yml")):
    for group in yaml.safe_load(file.read_text())["groups"]:
        for rule in group["rules"]:
            RULES.setdefault(rule.get("alert") or rule["record"], []).append(rule)
YEAR_SECONDS = 365 * 24 * 60 * 60
FAILOVER = (DOCS / "operate" / "failover.md").read_text()


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


def parse_worst_recoveries() -> dict[tuple[str, str], float]:
    """The longest measured recovery in seconds, by fault and coordinator."""
    found = re.search("<!-- chaos: begin -->(.*)<!-- chaos: end -->", FAILOVER, re.DOTALL)
    assert found is not None
    return {(row[0], row[1]): float(row[-1].removesuffix(" s")) for row in cells(found[1])}


def test_downtime_of_faults_that_recover_by_themselves_adds_up() -> None:
    *rows, last = table("by itself")
    for row in rows:
        assert number(row[2]) * number(row[3]) == pytest.approx(number(row[4])), row[0]
    assert sum(number(row[4]) for row in rows) == pytest.approx(number(last[4]))


def test_downtime_of_faults_that_need_people_adds_up() -> None:
    *rows, last = table("by people")
    for row in rows:
        assert number(row[1]) * number(row[2]) * 60 == number(row[3]), row[0]
    assert sum(number(row[3]) for row in rows) == number(last[3])


def test_each_fault_lists_its_longest_measured_recovery() -> None:
    measured = parse_worst_recoveries()
    faults = set()
    for row in table("by itself")[:-1]:
        fault = re.fullmatch(r"`([a-z-]+)`", row[1])
        if fault is None:
            # The recovery with Patroni is measured on another page.
            assert row[1] == "[Patroni](../deploy/postgresql.md)"
            assert f"| {row[3]}, " in (DOCS / "deploy" / "postgresql.md").read_text()
            continue
        assert number(row[3]) == measured[fault[1], "store"], fault[1]
        faults.add(fault[1])
    # A worker that is cut off in one direction recovers as fast as one cut off in both.
    assert {fault for fault, coordinator in measured if coordinator == "store"} - faults == {"cut-worker-one-way"}


def test_faults_with_another_coordinator_list_their_measured_recovery() -> None:
    measured = parse_worst_recoveries()
    rows = table("coordinators")
    assert rows
    for row in rows:
        assert number(row[4]) == measured[row[1].strip("`"), row[2]], row
        assert number(row[3]) * number(row[4]) == pytest.approx(number(row[5])), row
    assert max(seconds for (fault, _), seconds in measured.items() if fault == "promote-standby") == 10.3
    assert "up to 10.3 s" in PAGE


def test_the_total_downtime_is_compared_with_99_99_percent() -> None:
    alone, people = number(table("by itself")[-1][4]), number(table("by people")[-1][3])
    allowed = YEAR_SECONDS * 0.0001
    found = {
        row[0]: row[1:] for row in (line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|"))
    }
    shown = {name.strip(): [cell.strip() for cell in cells] for name, cells in found.items()}
    for name, seconds in (("automatic recovery", alone), ("with people", alone + people), ("99.99 %", allowed)):
        assert number(shown[name][0]) == pytest.approx(seconds)
        assert number(shown[name][1]) == pytest.approx(100 - seconds / YEAR_SECONDS * 100, abs=0.00005)
    assert number(shown["left"][0]) == pytest.approx(allowed - alone - people)
    assert alone + people < allowed
    assert f"**{allowed:,.0f} s**" in PAGE


def test_every_metric_named_on_the_page_exists() -> None:
    named = set(re.findall(r"mainspring_\w+", PAGE))
    known = set(re.findall(r"mainspring_\w+", (DOCS / "reference" / "metrics.md").read_text()))
    assert named
    assert {name.removesuffix("_bucket").removesuffix("_count") for name in named} <= known


def test_the_rules_named_on_the_page_are_shipped_with_its_objective() -> None:
    named = set(re.findall(r"mainspring:\w+:\w+", PAGE)) | set(re.findall(r"\[(MainspringErrorBudget\w+)\]", PAGE))
    assert len(named) == 5
    assert named <= RULES.keys()
    for window in ("5m", "30m", "1h", "6h"):
        [burn] = RULES[f"mainspring:error_budget_burn:rate{window}"]
        assert burn["expr"] == f"mainspring:error_ratio:rate{window} / 0.0001"
        ratios = RULES[f"mainspring:error_ratio:rate{window}"]
        assert [rule["labels"]["indicator"] for rule in ratios] == ["starts", "submits"]
        assert all(rule["expr"].count(f"[{window}]") == 2 for rule in ratios)
    assert "99.99 % over 30 days" in PAGE


@pytest.mark.parametrize(("name", "row"), [("Fast", "14.4 × | 1 hour and 5 min"), ("Slow", "6 × | 6 hours and 30 min")])
def test_the_alerts_fire_as_the_page_says(name: str, row: str) -> None:
    [alert] = RULES[f"MainspringErrorBudget{name}"]
    windows = re.findall(r"burn:rate(\d+)(\w) > ([\d.]+)", alert["expr"])
    assert row == "{2} × | {0} hour".format(*windows[0]) + ("s" if name == "Slow" else "") + f" and {windows[1][0]} min"
    assert f"](runbooks/error-budget-{name.lower()}.md) | {row}" in PAGE
    assert alert["expr"].endswith(">= 10")


def test_submits_are_selected_by_the_operation_names_of_the_api() -> None:
    names = re.findall(r'"operationId": "(\w+)"', (DOCS / "reference" / "openapi.json").read_text())
    operations = {
        found for rules in RULES.values() for rule in rules for found in re.findall(r'operation=~"(.*?)"', rule["expr"])
    }
    [operation] = operations
    assert {name for name in names if re.fullmatch(operation, name)} == {"create_job", "create_jobs", "create_workflow"}
