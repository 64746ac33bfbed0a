"""``create``, ``update``, ``show`` and ``cancel`` mean the same for every noun; short ids and ``--watch``."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from mainspring.cli.client.candidates import Candidate, choose_one
from mainspring.cli.main import build_application
from mainspring.cli.output import Output
from mainspring.core.model.base.errors import Conflict, Invalid, NotFound

Run = Callable[..., Result]
IDS = ("019a8c4b6f2c70008042b1c2d3e4f506", "019a8c4b6f2c70008042b1c2d3e4f507")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("MAINSPRING_STORE", "verbs.db")

    def call(*words: str, stdin: str = "") -> Result:
        return CliRunner().invoke(build_application(words[0]), list(words), input=stdin)

    assert call("migrate").exit_code == 0
    return call


def read(result: Result) -> Any:
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


def test_a_queue_is_updated_field_by_field_and_reset(run: Run) -> None:
    run("queues", "update", "mail", "--concurrency", "50", "--fair", "--share", "acme=3")
    changed = read(run("queues", "update", "mail", "--retries", "10/s", "--share", "bank=2", "--json"))
    assert changed == {
        "name": "mail",
        "concurrency": 50,
        "retries": "10/1s",
        "fair": True,
        "shares": {"acme": 3, "bank": 2},
    }
    assert read(run("queues", "update", "mail", "--concurrency", "5", "--json"))["fair"]
    assert isinstance(run("queues", "update", "mail").exception, Invalid)
    assert read(run("queues", "update", "mail", "--reset", "--json")) == {"name": "mail"}


def test_a_calendar_is_created_once_and_updated_field_by_field(run: Run) -> None:
    assert run("calendars", "create", "rest", "--tz", "Europe/Paris", "--closed", "sat", "--why", "law").exit_code == 0
    again = run("calendars", "create", "rest", "--closed", "sun")
    assert isinstance(again.exception, Conflict)
    assert "mainspring calendars update rest" in str(again.exception)
    changed = read(run("calendars", "update", "rest", "--closed", "sat", "--closed", "sun", "--json"))
    assert (changed["version"], changed["timezone"], changed["closedDays"]) == (2, "Europe/Paris", ["sat", "sun"])
    assert changed.get("why", "") == ""
    assert isinstance(run("calendars", "update", "nowhere", "--closed", "sun").exception, NotFound)
    assert isinstance(run("calendars", "update", "rest").exception, Invalid)


def test_a_budget_is_created_once_and_updated_field_by_field(run: Run) -> None:
    assert run("budgets", "create", "b", "--unit", "wall", "--limit", "60", "--then", "lower").exit_code == 0
    again = run("budgets", "create", "b", "--unit", "wall", "--limit", "5")
    assert isinstance(again.exception, Conflict)
    assert "mainspring budgets update b" in str(again.exception)
    changed = read(run("budgets", "update", "b", "--limit", "90", "--json"))
    assert (changed["limit"], changed["unit"], changed["then"], changed["of"]) == (90, "wall", "lower", "tenant")
    moved = read(run("budgets", "update", "b", "--task", "send", "--json"))
    assert (moved["of"], moved["target"], moved["limit"]) == ("task", "send", 90)
    assert isinstance(run("budgets", "update", "nowhere", "--limit", "1").exception, NotFound)
    assert isinstance(run("budgets", "update", "b").exception, Invalid)
    assert isinstance(run("budgets", "update", "b", "--job", "a", "--task", "b").exception, Invalid)


def test_a_tenant_is_created_once_and_updated(run: Run) -> None:
    assert run("tenants", "create", "acme").exit_code == 0
    assert isinstance(run("tenants", "create", "acme").exception, Conflict)
    assert read(run("tenants", "update", "acme", "--retention", "audit", "--json"))["retention"] == "audit"
    assert isinstance(run("tenants", "update", "acme").exception, Invalid)
    assert isinstance(run("tenants", "update", "nowhere", "--retention", "audit").exception, NotFound)


def test_a_profile_is_created_once_updated_and_deleted(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.key").write_text("ms_secret")
    assert run("profiles", "create", "p", "--url", "http://a", "--key-file", "a.key", "--tenant", "t").exit_code == 0
    assert isinstance(run("profiles", "create", "p", "--url", "http://b").exception, Conflict)
    run("profiles", "update", "p", "--tenant", "acme")
    [kept] = read(run("profiles", "list", "--json"))["items"]
    assert (kept["url"], kept["key"], kept["tenant"]) == ("http://a", "a.key", "acme")
    assert isinstance(run("profiles", "update", "p").exception, Invalid)
    assert isinstance(run("profiles", "update", "q", "--url", "http://b").exception, NotFound)
    run("profiles", "delete", "p")
    assert read(run("profiles", "list", "--json"))["items"] == []


def test_a_profile_with_another_address_loses_its_key(run: Run) -> None:
    run("profiles", "create", "p", "--url", "http://a", "--key-stdin", stdin="ms_secret\n")
    run("profiles", "update", "p", "--url", "http://elsewhere")
    [kept] = read(run("profiles", "list", "--json"))["items"]
    assert (kept["url"], kept["key"]) == ("http://elsewhere", "none")


def test_a_key_is_revoked_by_its_name_or_the_beginning_of_its_id(run: Run) -> None:
    for name in ("ci", "ci", "other"):
        assert run("keys", "create", "--name", name, "--role", "viewer").exit_code == 0
    other, *twins = read(run("keys", "list", "--json"))["items"]
    refused = run("keys", "revoke", "ci")
    assert isinstance(refused.exception, Invalid)
    assert all(key["keyId"] in str(refused.exception) for key in twins)
    assert run("keys", "revoke", twins[0]["keyId"][:8]).exit_code == 0
    assert run("keys", "revoke", "ci").exit_code == 0
    assert run("keys", "revoke", "other").exit_code == 0
    assert all("revokedAt" in key for key in read(run("keys", "list", "--json"))["items"])
    assert other["name"] == "other"


def test_a_workflow_is_named_by_a_part_of_its_id_or_its_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text("name: nightly\nnodes:\n  a: {task: send}\n  b: {task: send, after: [a]}\n")
    identifier = run("workflows", "submit", "-f", "flow.yaml", "--quiet").stdout.strip()
    for name in (identifier, identifier[-12:], "nightly"):
        assert read(run("workflows", "show", name, "--json"))["workflowId"] == identifier
    assert run("workflows", "submit", "-f", "flow.yaml").exit_code == 0
    refused = run("workflows", "cancel", "nightly")
    assert isinstance(refused.exception, Invalid)
    assert f"{identifier} (nightly " in str(refused.exception)
    assert run("workflows", "cancel", identifier[-12:]).exit_code == 0


def test_alerts_list_explains_that_no_channel_is_configured(run: Run) -> None:
    listed = run("alerts", "list")
    assert (listed.exit_code, "no alert channels" in listed.stderr) == (0, True)
    assert read(run("alerts", "list", "--json"))["channels"] == []


def test_an_ambiguous_part_of_an_id_lists_the_candidates() -> None:
    found = [Candidate(job_id="j", run_id=one, task="send", status="queued") for one in IDS]
    with pytest.raises(Invalid, match=f"'019a' is part of 2 ids.*{IDS[0]} .send queued., {IDS[1]}"):
        choose_one(found, "run", "'019a' is part of 2 ids")
    with pytest.raises(Invalid, match="and 12 more"):
        choose_one(found * 10, "run", "too many")
    assert choose_one(found[:1], "run", "") == IDS[0]


@pytest.mark.parametrize(("width", "shown"), [("80", IDS[0][-12:]), ("120", IDS[0][-12:]), ("160", IDS[0])])
def test_a_terminal_shows_short_ids(width: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert Output(as_json=False, quiet=False, utc=False, now=lambda: 0).id(IDS[0]) == shown


def test_a_name_in_the_first_column_is_never_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "a-name-of-fifty-characters-that-can-be-copied-here"
    Output(as_json=False, quiet=False, utc=False, now=lambda: 0).rows(("JOB", "TASK", "WHEN"), [(name, "t" * 60, "x")])
    assert name in capsys.readouterr().out


def test_watch_repeats_the_output_until_it_is_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(as_json=False, quiet=False, utc=False, now=lambda: 0)
    slept: list[int] = []

    async def sleep(micros: int) -> None:
        slept.append(micros)
        if len(slept) == 3:
            raise asyncio.CancelledError

    async def show() -> None:
        out.print(f"sample {len(slept)}")
        out.report("a hint")

    clock: Any = SimpleNamespace(sleep=sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(out.watch(show, clock))
    assert capsys.readouterr().out.splitlines() == [
        line for number in range(3) for line in (f"sample {number}", "a hint")
    ]


@pytest.mark.parametrize("words", [("runs", "list"), ("queues", "show"), ("workflows", "show")])
def test_commands_that_show_something_can_watch_it(words: tuple[str, ...], run: Run) -> None:
    assert "--watch" in run(*words, "--help").output
