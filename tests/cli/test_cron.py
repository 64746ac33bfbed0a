"""``mainspring cron explain`` as a user sees it."""

import json
import re

import pytest
from typer.testing import CliRunner, Result

from mainspring.cli.main import application
from tests.cli.conftest import Refuse

FROM = ("--from", "2026-11-15T12:00:00Z")


def explain(*words: str, **environment: str) -> Result:
    found = CliRunner().invoke(application, ["cron", "explain", *words], catch_exceptions=False, env=environment)
    assert found.exit_code == 0, found.stderr
    return found


def test_explain_shows_the_fields_and_the_upcoming_ticks() -> None:
    shown = explain("0 30 9 * * MON", "--tz", "Europe/Paris", "-n", "2", *FROM).stdout
    assert [line.rstrip() for line in shown.splitlines()] == [
        "every Monday at 09:30, Europe/Paris",
        "",
        "FIELD         WRITTEN  MEANS",
        "second        0        second 0",
        "minute        30       minute 30",
        "hour          9        hour 9",
        "day of month  *        every day",
        "month         *        every month",
        "day of week   MON      every Monday",
        "",
        "NEXT                            UTC",
        "Mon 2026-11-16 09:30:00 +01:00  2026-11-16T08:30:00Z  in 20 hours",
        "Mon 2026-11-23 09:30:00 +01:00  2026-11-23T08:30:00Z  in 7 days",
        "",
        "No clock change within a year affects it.",
    ]


def test_explain_shows_clock_changes_and_the_effect_of_the_rules() -> None:
    shown = explain("30 2 * * *", "--tz", "Europe/Paris", *FROM, COLUMNS="160").stdout
    assert "2027-03-28  clocks jump from 02:00 to 03:00; 02:30 does not exist: runs once, at 03:00" in shown
    assert "2027-10-31  clocks go back from 03:00 to 02:00; 02:30 comes twice: runs the first time only" in shown
    others = ("--gap", "skip", "--fold", "twice")
    shown = explain("30 2 * * *", "--tz", "Europe/Paris", *others, *FROM, COLUMNS="160").stdout
    assert "02:30 does not exist: does not run" in shown
    assert "02:30 comes twice: runs both times" in shown


def test_json_has_every_part_of_the_explanation() -> None:
    found = json.loads(explain("@hourly", "--tz", "Europe/Paris", "--json", "-n", "1", *FROM).stdout)
    assert found["words"] == "every hour"
    assert [field["field"] for field in found["fields"]] == ["minute", "hour", "day of month", "month", "day of week"]
    [fire] = found["nextFires"]
    assert (fire["local"], fire["utc"]) == ("2026-11-15T14:00:00+01:00", "2026-11-15T13:00:00Z")
    assert (fire["distance"], fire["starts"], fire["reason"]) == ("in 60 minutes", "2026-11-15T13:00:00Z", "")
    assert [change["rule"] for change in found["clockChanges"]] == ["elapsed", "elapsed"]
    assert found["fixedTimes"] is False
    assert len(found["notes"]) == 1


@pytest.mark.parametrize(
    ("expression", "note"),
    [
        ("H 3 * * *", "H is resolved from the job's id"),
        ("0 0 13 * FRI", "a day that matches either one is enough"),
    ],
)
def test_explain_notes_surprising_expressions(expression: str, note: str) -> None:
    assert note in explain(expression).stdout


def test_the_h_in_thu_is_no_hash() -> None:
    assert "H is" not in explain("0 0 * MAR THU").stdout


@pytest.mark.parametrize("columns", ["80", "160"])
def test_the_explanation_fits_the_terminal(columns: str) -> None:
    words = ("*/7 1,5,9 1,2,3,4,7,9,11,13,17 1,3,5 MON-FRI", "--tz", "America/Argentina/ComodRivadavia")
    assert max(map(len, explain(*words, COLUMNS=columns).stdout.splitlines())) <= int(columns)


def test_colors_need_a_terminal_and_respect_no_color() -> None:
    assert "\x1b" not in explain("@daily").stdout
    assert "\x1b" not in re.sub(r"\x1b\[[01]m", "", explain("@daily", FORCE_COLOR="1", NO_COLOR="1").stdout)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["61 * * * *"], "expression: minute: 61 is out of range (0 to 59)"),
        (["* * *"], "expression: has 3 fields (5, or 6 with seconds first; for example 30 9 * * MON-FRI)"),
        (["@reboot"], "expression: @reboot is not a time"),
        (["@daily", "--tz", "Europe/Pari"], "--tz: 'Europe/Pari' is not a known time zone"),
        (["@daily", "--from", "noon"], "--from: 'noon' is not a time"),
        (["@daily", "-n", "0"], "'-n' / '--count'"),
        (["@daily", "--gap", "jump"], "'jump' is not one of 'run_after', 'skip'"),
        (["0 0 30 2 *"], "no such day exists in these months (it would never fire)"),
    ],
)
def test_a_mistake_is_one_line(refuse: Refuse, words: list[str], message: str) -> None:
    assert message in refuse("cron", "explain", *words)


@pytest.mark.parametrize("start", ["1970-01-01T00:00:00Z", "9999-12-31T00:00:00Z"])
def test_explain_works_at_both_ends_of_the_calendar(start: str) -> None:
    assert explain("30 2 * * *", "--tz", "Europe/Paris", "--from", start).stdout.startswith("every day at 02:30")


def test_help_has_examples() -> None:
    shown = CliRunner().invoke(application, ["cron", "explain", "--help"]).stdout
    assert 'mainspring cron explain "0 30 9 * * MON" --tz Europe/Paris' in shown
