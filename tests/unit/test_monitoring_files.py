"""Alert rules, dashboards and runbooks refer to existing metrics, labels, commands and pages."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.exceptions import TyperException
from typer.main import get_command

from mainspring.cli.main import application
from mainspring.config.loading import load
from mainspring.config.settings import describe
from mainspring.core.model.base.instant import MINUTE
from mainspring.core.model.cluster.diagnosis import Finding
from mainspring.core.runtime.metrics.declared import ALL, STANDARD
from mainspring.core.runtime.metrics.metric import MetricKind
from mainspring.stores.postgres.upkeep import findings
from tools import dashboards

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "operate" / "runbooks"
RULES: list[dict[str, Any]] = [
    rule
    for file in sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yml"))
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
#: Metrics of Prometheus itself and of node_exporter.
FOREIGN = {"up", "node_filesystem_avail_bytes", "node_filesystem_size_bytes"}
COMMANDS: Any = get_command(application)
_NAME = re.compile(r"(?<![\w:{])(?:mainspring[_:]|process_|node_)[\w:]+|\bup(?=\{)")
_GROUPED = re.compile(r"\b(?:by|on|without|ignoring) \(([^)]*)\)")
_SHELL = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_TOML = re.compile(r"```toml\n(.*?)```", re.DOTALL)


def list_series() -> set[str]:
    """The names of all series."""
    found = set[str]()
    for metric in (*ALL, *STANDARD):
        match metric.kind:
            case MetricKind.HISTOGRAM:
                found |= {f"{metric.name}_{part}" for part in ("bucket", "count", "sum")}
            case MetricKind.SUMMARY:
                found |= {f"{metric.name}_{part}" for part in ("count", "sum")}
            case _:
                found.add(metric.name)
    return found


def list_labels() -> set[str]:
    recorded = {label for rule in RULES if "record" in rule for label in rule.get("labels", ())}
    return {label for metric in ALL for label in metric.labels} | recorded | {"instance", "job", "le", "mountpoint"}


def list_queries() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule.get("alert") or rule["record"], rule["expr"]
    for name, (_, panels) in dashboards.DASHBOARDS.items():
        for panel in panels:
            for query, legend in panel.queries:
                yield f"{name}: {panel.title}", query
                assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= list_labels(), panel.title


@pytest.mark.parametrize(("where", "query"), list(list_queries()))
def test_a_query_names_only_exported_or_recorded_metrics(where: str, query: str) -> None:
    names = set(_NAME.findall(query))
    assert names
    assert names <= list_series() | RECORDED | FOREIGN
    for group in _GROUPED.findall(query):
        assert {label.strip() for label in group.split(",")} <= list_labels()


def test_every_recorded_metric_is_used() -> None:
    used = " ".join(query for _, query in list_queries())
    assert {name for name in RECORDED if not re.search(rf"{name}\b", used)} == set()


@pytest.mark.parametrize("name", dashboards.DASHBOARDS)
def test_the_dashboards_are_current(name: str) -> None:
    assert (dashboards.FOLDER / f"{name}.json").read_text() == dashboards.render(name), "make reference"


def test_every_dashboard_has_a_file_and_a_unique_uid() -> None:
    assert {path.stem for path in dashboards.FOLDER.glob("*.json")} == set(dashboards.DASHBOARDS)
    assert set(dashboards.DASHBOARDS) == {"overview", "queues", "workers", "schedulers", "store"}
    identifiers = [json.loads(path.read_text())["uid"] for path in dashboards.FOLDER.glob("*.json")]
    assert len(set(identifiers)) == len(identifiers)


def find_runbook(rule: dict[str, Any]) -> str:
    """The source page of the linked runbook, which has another suffix on the site."""
    folder, _, name = rule["annotations"]["runbook_url"].rpartition("/")
    assert folder == "{{ $externalLabels.runbooks }}"
    assert name.endswith(".html"), name
    return Path(name).with_suffix(".md").name


@pytest.mark.parametrize("name", ["prometheus.yml", "compose.yml"])
def test_an_example_configures_the_address_of_the_runbooks(name: str) -> None:
    example = yaml.safe_load((ROOT / "deploy" / "prometheus" / name).read_text())
    assert example["global"]["external_labels"]["runbooks"].endswith(f"/{RUNBOOKS.relative_to(ROOT)}")


@pytest.mark.parametrize("name", ["prometheus.yml", "compose.yml", "kubernetes.yml"])
def test_an_example_scrapes_every_job_that_an_alert_uses(name: str) -> None:
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / name).read_text())["scrape_configs"]
    used = {job for rule in ALERTS for job in re.findall(r'\bjob="([^"]*)"', rule["expr"])}
    assert used
    assert used <= {job["job_name"] for job in scraped}
    # The alert for an instance that does not answer selects jobs by this prefix.
    assert all(job["job_name"].startswith("mainspring-") for job in scraped)


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    linked = {rule["alert"]: find_runbook(rule) for rule in ALERTS}
    assert set(linked.values()) == {path.name for path in RUNBOOKS.glob("[!R]*.md")}
    for alert, page in linked.items():
        text = (RUNBOOKS / page).read_text()
        assert text.startswith(f"# {alert}\n")
        assert all(f"\n## {title}\n" in text for title in ("What it means", "Check", "Fix", "Prevent"))


def test_a_runbook_shows_the_current_rule() -> None:
    for rule in ALERTS:
        text = (RUNBOOKS / find_runbook(rule)).read_text()
        shown = text.partition("```promql\n")[2].partition("```")[0]
        assert " ".join(shown.split()) == " ".join(rule["expr"].split()), rule["alert"]


SLOT = {"name": "standby_2", "xids": 0, "kept": 5_210 << 20, "active": False}
REPORT = {"who": "process 8145 (report)", "state": "idle in transaction", "age": 7 * MINUTE, "xids": 51_234}
STANDBY = {"name": "standby_2", "late": 3 * MINUTE, "bytes": 420 << 20}
TABLE = {"name": "mainspring.run", "dead": 412_318, "live": 20_114, "size": 300 << 20, "ago": 9 * MINUTE}


@pytest.mark.parametrize(
    ("page", "finding"),
    [
        ("connections-scarce", findings.check_room(188, 200)),
        ("log-kept", findings.check_slots([SLOT])[0]),
        ("server-disk-filling", findings.check_slots([SLOT])[0]),
        ("old-transaction", findings.check_transactions([REPORT], sees_all=True)),
        ("replication-behind", findings.check_standbys([STANDBY])[0]),
        ("transaction-ids", findings.check_wraparound(1_104_882_017, "jobs")),
        ("vacuum-behind", findings.check_vacuum([TABLE])[0]),
    ],
)
def test_a_runbook_shows_what_doctor_finds_in_a_state_that_no_test_can_create(page: str, finding: Finding) -> None:
    text = (RUNBOOKS / f"{page}.md").read_text()
    assert f"{finding.level:<8} {finding.check:<20}{finding.says}\n" in text
    assert f" → {finding.advice}\n" in text


def test_every_alert_has_a_severity() -> None:
    assert {rule["labels"]["severity"] for rule in ALERTS} == {"page", "ticket"}


def list_commands() -> Iterator[tuple[str, str]]:
    for page in sorted(RUNBOOKS.glob("[!R]*.md")):
        for block in _SHELL.findall(page.read_text()):
            for line in block.splitlines():
                if "mainspring " in line and not line.startswith(("psql", "curl")):
                    yield page.name, line


@pytest.mark.parametrize(("page", "line"), list(list_commands()))
def test_a_command_in_a_runbook_exists(page: str, line: str) -> None:
    words = shlex.split(line)
    settings = {f"MAINSPRING_{path.replace('.', '_').upper()}" for path, _ in describe()}
    environment = dict[str, str]()
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        assert name in settings
        environment[name] = value
    load(environment=environment)
    assert words.pop(0) == "mainspring"
    _parse(words)


def test_settings_in_a_runbook_are_valid_together(tmp_path: Path) -> None:
    found = [(page, block) for page in sorted(RUNBOOKS.glob("*.md")) for block in _TOML.findall(page.read_text())]
    assert {page.stem for page, _ in found} >= {"api-errors", "events-behind"}
    for number, (_, block) in enumerate(found):
        file = tmp_path / f"{number}.toml"
        file.write_text(block)
        load(environment={}, file=file)


def test_no_runbook_sets_event_settings_for_a_single_scheduler() -> None:
    """Only the owner of the first shard drops events, by its own settings."""
    assert not [(page, line) for page, line in list_commands() if "MAINSPRING_EVENTS_" in line]


def _parse(words: list[str]) -> None:
    """Parse a command line without running it; unknown and missing arguments are errors."""
    command: Any = COMMANDS
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("mainspring", words)


@pytest.mark.parametrize("line", ["nope", "queues pause mail --bogus 3", "runs show", "queues update"])
def test_the_check_of_commands_finds_unknown_ones(line: str) -> None:
    with pytest.raises((KeyError, TyperException)):
        _parse(line.split())
