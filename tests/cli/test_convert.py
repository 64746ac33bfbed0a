"""``mainspring convert`` as a user sees it: each source, what it refuses and why, and the file that it writes."""

import importlib.util
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from mainspring.cli.main import application
from mainspring.core.model.base.instant import HOUR, SECOND
from mainspring.core.model.schedules.job import JobSpec, Overlap
from mainspring.core.model.schedules.schedule import CronSchedule, Interval
from mainspring.core.worker.builtin.shell import read_call
from mainspring.features.schedules import file as schedule_file
from mainspring.features.schedules.commands.converters import celery_beat, crontab
from mainspring.features.schedules.commands.converters.conversion import Conversion
from tests.cli.conftest import Refuse


def convert(*words: str, code: int = 0, text: str | None = None) -> Result:
    found = CliRunner().invoke(application, ["convert", *words], input=text, catch_exceptions=False)
    assert found.exit_code == code, found.output
    return found


def declared(found: Conversion) -> dict[str, tuple[JobSpec, Any]]:
    """Return the specs that the written file declares, by name, with payloads as objects."""
    text = schedule_file.format_file([schedule_file.Entry(entry.fields, entry.warnings) for entry in found.translated])
    return {spec.name: (spec, json.loads(payload)) for spec, payload in schedule_file.read_text(text)}


def refusals(found: Conversion) -> dict[str, str]:
    return {refused.what: refused.why for refused in found.refused}


# --- crontab --------------------------------------------------------------------------------------------------------

TAB = r"""# of ada
MAILTO=ops@example.org
PATH=/usr/local/bin:/usr/bin
30 2 * * 1-5	/usr/local/bin/backup.sh --full > /dev/null 2>&1
CRON_TZ=Europe/Paris
  0 0 13 * FRI  cd /srv && nice ./unlucky
"QUOTED" = ' kept '
SHELL=/bin/bash
@weekly  mail -s "100\%" boss%Dear boss,%all is well.
0~30 3 * * * random
@reboot start-it
61 * * * * never
0 5 * * *
"""


def cron(text: str, **options: Any) -> Conversion:
    return crontab.convert(text, **{"system": False, "timezone": None, "task": None, **options})


def test_a_crontab_becomes_schedules() -> None:
    found = cron(TAB)
    jobs = declared(found)
    assert list(jobs) == ["backup.sh", "unlucky", "mail", "random"]
    spec, payload = jobs["backup.sh"]
    assert spec.schedule == CronSchedule("30 2 * * 1-5", "UTC")
    assert (spec.task, spec.policy.retry.max_retries, spec.catch_up.mode) == ("shell", 0, "none")
    shell = ["/usr/bin/env", "PATH=/usr/local/bin:/usr/bin", "/bin/sh", "-c"]
    assert payload == {"command": [*shell, "/usr/local/bin/backup.sh --full > /dev/null 2>&1"]}
    assert jobs["unlucky"][0].schedule == CronSchedule("0 0 13 * FRI", "Europe/Paris")
    assert jobs["mail"][1]["command"][2:] == [
        "QUOTED= kept ",
        "/bin/bash",
        "-c",
        "{ mail -s \"100%\" boss\n} <<'END_OF_INPUT'\nDear boss,\nall is well.\nEND_OF_INPUT\n",
    ]
    assert jobs["random"][0].schedule == CronSchedule("H(0-30) 3 * * *", "Europe/Paris")
    for _, payload in jobs.values():
        assert read_call(json.dumps(payload).encode())


def test_lines_of_a_crontab_without_an_equivalent_are_refused_or_noted() -> None:
    found = cron(TAB)
    assert {refused.where: refused.why for refused in found.refused} == {
        "line 11": "@reboot is not a time: submit a job when the machine starts",
        "line 12": "cronExpression: minute: 61 is out of range (0 to 59)",
        "line 13": "has no command",
    }
    assert [warning for entry in found.translated for warning in entry.warnings] == [
        "a random time (~) becomes a fixed time for the job (H)"
    ]
    notes = " ".join(found.notes)
    assert "read as UTC" in notes
    assert "not mailed to ops@example.org" in notes
    assert "tasks.commands = true" in notes


def test_a_command_gets_its_input(tmp_path: Path) -> None:
    import subprocess

    [(_, payload)] = declared(cron(rf"* * * * * cat > {tmp_path}/out; echo 5\% >> {tmp_path}/out%one%two")).values()
    subprocess.run(payload["command"], check=True)
    assert (tmp_path / "out").read_text() == "one\ntwo\n5%\n"


def test_a_system_crontab_has_users() -> None:
    found = cron("17 * * * *\troot    cd / && run-parts /etc/cron.hourly\n@daily ada true\n", system=True)
    jobs = declared(found)
    assert {name: spec.owner for name, (spec, _) in jobs.items()} == {"run-parts": "root", "true": "ada"}
    assert found.translated[0].warnings == ["ran as root; runs as the worker's user, and root is only its owner label"]


def test_with_a_task_option_the_command_is_its_payload() -> None:
    found = cron("A=1\n0 5 * * * report %x", task="legacy", timezone="Europe/Rome")
    [(spec, payload)] = declared(found).values()
    assert (spec.name, spec.task, spec.schedule) == ("report", "legacy", CronSchedule("0 5 * * *", "Europe/Rome"))
    assert payload == {"command": "report", "input": "x", "environment": {"A": "1"}}
    assert "tasks.commands" not in " ".join(found.notes)


def test_schedules_with_the_same_name_get_a_number() -> None:
    found = cron("0 1 * * * run\n0 2 * * * run\n0 3 * * * run\n")
    assert [entry.name for entry in found.translated] == ["run", "run-2", "run-3"]


def test_an_empty_mailto_gives_no_note_about_mail() -> None:
    assert not any("mailed" in note for note in cron('MAILTO=""\n0 1 * * * run').notes)


# --- Celery ---------------------------------------------------------------------------------------------------------

CELERY = """
from datetime import timedelta

from celery import Celery
from celery.schedules import crontab, schedule

app = Celery("x")
app.conf.timezone = "Europe/London"
MINUTE = 60

@app.task(name="tasks.add", shared=False)
def add(x, y=1, **more): ...

@app.on_after_finalize.connect
def more(sender, **_):
    sender.add_periodic_task(15.0, add.s(x=1), name="added")

app.conf.beat_schedule = {
    "seconds": {"task": "tasks.add", "schedule": 30.0, "args": (16, 17), "kwargs": {"z": 18}},
    "delta": {"task": "tasks.add", "schedule": timedelta(hours=1), "kwargs": {"x": 1}},
    "schedule": {"task": "tasks.add", "schedule": schedule(run_every=timedelta(seconds=90))},
    "minutes": {"task": "tasks.add", "schedule": 5 * MINUTE},
    "monday": {
        "task": "tasks.add",
        "schedule": crontab(hour=7, minute=30, day_of_week="mon"),
        "options": {"queue": "mail", "priority": 9, "expires": 60, "routing_key": "q"},
    },
    "office": {"task": "tasks.add", "schedule": crontab(minute="*/15", hour="8-18", day_of_week="mon-fri")},
    "night": {"task": "tasks.add", "schedule": crontab(minute=0, hour="22-4")},
    "second-tuesday": {"task": "tasks.add", "schedule": crontab(0, 0, day_of_month="8-14", day_of_week="tue")},
    "first-if-friday": {"task": "tasks.add", "schedule": crontab(0, 0, day_of_month=1, day_of_week="fri")},
    "thirteenth-if-friday": {"task": "tasks.add", "schedule": crontab(0, 0, day_of_month=13, day_of_week="fri")},
    "too-often": {"task": "tasks.add", "schedule": 0.5},
    "does-not-fit": {"task": "tasks.add", "schedule": 30, "args": (1, 2, 3)},
}
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Write a module that only this test imports, and return its name."""

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return write


def _check_celery(found: Conversion) -> dict[str, tuple[JobSpec, Any]]:
    jobs = declared(found)
    assert jobs["delta"][0].schedule == Interval(HOUR)
    assert jobs["delta"][1] == {"x": 1}
    assert jobs["schedule"][0].schedule == Interval(90 * SECOND)
    assert jobs["minutes"][0].schedule == Interval(300 * SECOND)
    monday, _ = jobs["monday"]
    assert monday.schedule == CronSchedule("30 7 * * 1", "Europe/London")
    assert (monday.queue, monday.priority, monday.start_within) == ("mail", 1, 60 * SECOND)
    expressions = {
        name: spec.schedule.expression for name, (spec, _) in jobs.items() if isinstance(spec.schedule, CronSchedule)
    }
    assert expressions == {
        "monday": "30 7 * * 1",
        "office": "*/15 8-18 * * 1-5",
        "night": "0 0-4,22,23 * * *",
        "second-tuesday": "0 0 * * 2#2",
        "first-if-friday": "0 0 */31 * 5",
    }
    assert {spec.policy.retry.max_retries for spec, _ in jobs.values()} == {0}
    refused = refusals(found)
    assert refused["too-often"] == "every: is 500ms (at least 1s)"
    assert "both 13 of the month and 5 of the week" in refused["thirteenth-if-friday"]
    [monday_entry] = [entry for entry in found.translated if entry.name == "monday"]
    assert len(monday_entry.warnings) == 2
    return jobs


def test_the_beat_schedule_of_a_celery_application_becomes_schedules(source: Callable[[str, str], str]) -> None:
    found = celery_beat.convert(f"{source('celery_one', CELERY)}:app", timezone=None)
    jobs = _check_celery(found)
    assert jobs["seconds"][1] == {"x": 16, "y": 17, "z": 18}
    assert jobs["added"][0].schedule == Interval(15 * SECOND)
    assert refusals(found)["does-not-fit"].startswith("its arguments do not fit the function")


def test_a_celery_file_is_imported_if_celery_is_installed(source: Callable[[str, str], str]) -> None:
    _check_celery(celery_beat.convert(f"{source('celery_two', CELERY)}.py", timezone=None))


def test_a_celery_file_is_parsed_if_celery_is_not_installed(
    source: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = source("celery_three", CELERY + "\nraise RuntimeError('this must not be run')\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found = celery_beat.convert(f"{name}.py", timezone=None)
    _check_celery(found)
    assert "use kwargs" in refusals(found)["seconds"]


def test_a_celery_settings_file_is_parsed_without_importing_it(
    source: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
from celery.schedules import crontab, solar
import os
CELERY_TIMEZONE = "Europe/Rome"
CELERY_BEAT_SCHEDULE = {
    "literal": {"task": "t", "schedule": crontab(minute=[0, 30]), "kwargs": dict(n=-1, m=[1, {"a": None}])},
    "sun": {"task": "t", "schedule": solar("sunset", -37.8, 144.9)},
    "computed": {"task": "t", "schedule": float(os.environ["EVERY"])},
    "no-task": {"schedule": 3},
}
"""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    found = celery_beat.convert(f"{source('celery_settings', text)}.py", timezone=None)
    [(spec, payload)] = declared(found).values()
    assert spec.schedule == CronSchedule("0,30 * * * *", "Europe/Rome")
    assert payload == {"n": -1, "m": [1, {"a": None}]}
    assert refusals(found) == {
        "sun": "its solar schedule has no cron equivalent",
        "computed": "line 8 is not a literal: install celery here to read it",
        "no-task": "it has no task",
    }


@pytest.mark.parametrize("minute", ["*", "*/7", "5-10", "50-5", "10-40/3", "1,2,40-50/5", "7"])
def test_a_minute_field_means_the_same_as_in_celery(minute: str) -> None:
    from celery.schedules import crontab as real

    from mainspring.features.schedules.commands.converters.celery_schedules import parse_crontab_field

    assert parse_crontab_field(minute, 0, 59) == real(minute=minute).minute


@pytest.mark.parametrize("days", ["mon", "fri-mon", "0,6", "sunday", "*/2", "thu-sat/2"])
def test_a_weekday_field_means_the_same_as_in_celery(days: str) -> None:
    from celery.schedules import crontab as real

    from mainspring.features.schedules.commands.converters.celery_schedules import parse_crontab_field

    assert parse_crontab_field(days, 0, 6) == real(day_of_week=days).day_of_week


# --- APScheduler ----------------------------------------------------------------------------------------------------

APSCHEDULER = """
from datetime import datetime

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

scheduler = BackgroundScheduler(timezone="Europe/Paris")

def tick(n=1, m=2): ...

add = scheduler.add_job
add(tick, "interval", seconds=90, id="interval", jitter=10)
add(tick, "interval", hours=1, start_date="2127-01-01 00:30:00", id="anchored")
add(tick, "cron", day_of_week="mon-fri", hour=9, minute="*/10", args=[3], id="office", misfire_grace_time=300,
    max_instances=3)
add(tick, "cron", day="last fri", hour=3)
add(tick, "cron", day="last", hour=3, id="last")
add(tick, "cron", day="2nd tue,15", hour=3, id="either")
add(tick, "cron", second="*/5", start_date="2127-01-01", end_date="2127-02-01", id="bounded",
    misfire_grace_time=None, coalesce=False)
add(tick, "cron", month="jan,jun-aug", day=1, hour=0, id="months", timezone="UTC", misfire_grace_time=None)
add(tick, "cron", day=13, day_of_week="fri", id="both")
add(tick, "cron", week=3, id="week")
add(tick, "cron", year=2030, id="year")
add(tick, "date", run_date=datetime(2127, 1, 1), id="once")
add(tick, OrTrigger([CronTrigger(hour=1), CronTrigger(hour=2)]), id="or")
add(lambda: None, "interval", minutes=1, id="nameless")
add(tick, "interval", minutes=1, id="paused", next_run_time=None)
"""


def test_the_jobs_of_an_apscheduler_become_schedules(source: Callable[[str, str], str]) -> None:
    from mainspring.features.schedules.commands.converters import apscheduler

    found = apscheduler.convert(f"{source('aps_one', APSCHEDULER)}:scheduler", timezone=None)
    jobs = declared(found)
    expressions = {
        name: spec.schedule.expression for name, (spec, _) in jobs.items() if isinstance(spec.schedule, CronSchedule)
    }
    assert expressions == {
        "office": "*/10 9 * * 1-5",
        "tick": "0 3 * * 5L",
        "last": "0 3 L * *",
        "either": "0 3 15 * 2#2",
        "bounded": "*/5 * * * * *",
        "months": "0 0 1 1,6-8 *",
    }
    interval = jobs["interval"][0]
    assert interval.schedule == Interval(90 * SECOND, jitter=10 * SECOND)
    assert (interval.task, interval.overlap, interval.catch_up.mode) == ("tick", Overlap.SKIP, "none")
    start = jobs["anchored"][0].schedule.start
    assert start is not None
    assert start % HOUR == 30 * 60 * SECOND
    office, payload = jobs["office"]
    assert payload == {"n": 3}
    assert (office.overlap, office.catch_up.mode, office.catch_up.grace) == (Overlap.ALLOW, "none", 300 * SECOND)
    assert isinstance(office.schedule, CronSchedule)
    assert office.schedule.timezone == "Europe/Paris"
    assert jobs["bounded"][0].catch_up.mode == "all"
    assert jobs["bounded"][0].schedule.end is not None
    assert jobs["months"][0].catch_up.mode == "latest"
    assert jobs["months"][0].schedule == CronSchedule("0 0 1 1,6-8 *", "UTC")
    why = refusals(found)
    assert set(why) == {"both", "week", "year", "once", "or", "nameless", "paused"}
    assert why["once"].startswith("it runs once, at 2127-01-01T00:00:00+01:00")
    assert why["or"] == "OrTrigger has no counterpart: split it into several schedules"
    assert why["week"] == "week=3: a cron expression has no week"


# --- Kubernetes -----------------------------------------------------------------------------------------------------

MANIFESTS = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: report, namespace: prod}
spec:
  schedule: "0 3 */2 * 1"
  timeZone: Europe/Paris
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 200
  jobTemplate:
    spec:
      backoffLimit: 2
      activeDeadlineSeconds: 600
      template:
        spec:
          containers:
          - image: registry.example/report:1
            command: [/bin/report]
            args: [--all, 7]
            env: [{name: LEVEL, value: "1"}, {name: SECRET, valueFrom: {secretKeyRef: {name: a, key: b}}}]
---
apiVersion: v1
kind: Service
---
apiVersion: v1
kind: List
items:
- kind: CronJob
  metadata: {name: every}
  spec:
    schedule: "@every 1h30m"
    concurrencyPolicy: Replace
    jobTemplate: {spec: {template: {spec: {containers: [{image: a, command: [sync]}]}}}}
- kind: CronJob
  metadata: {name: image}
  spec: {schedule: "0 1 * * *", jobTemplate: {spec: {template: {spec: {containers: [{image: a}]}}}}}
- kind: CronJob
  metadata: {name: suspended}
  spec: {suspend: true, schedule: "0 1 * * *"}
- kind: CronJob
  metadata: {name: two}
  spec: {schedule: "0 1 * * *", jobTemplate: {spec: {template: {spec: {containers: [{}, {}]}}}}}
- kind: CronJob
  metadata: {name: wrong}
  spec: {schedule: "0 25 * * *", jobTemplate: {spec: {template: {spec: {containers: [{command: [x]}]}}}}}
"""


def test_kubernetes_cron_jobs_become_schedules() -> None:
    from mainspring.features.schedules.commands.converters import kubernetes

    found = kubernetes.convert(MANIFESTS, where="x", timezone=None)
    jobs = declared(found)
    report, payload = jobs["report"]
    # In Kubernetes a step is a list of days, and either day field is enough.
    assert isinstance(report.schedule, CronSchedule)
    assert report.schedule.expression == "0 3 1-31/2 * 1"
    assert (report.schedule.gap.value, report.schedule.fold.value) == ("skip", "twice")
    assert (report.overlap, report.policy.retry.max_retries, report.policy.timeout) == (Overlap.SKIP, 2, 600 * SECOND)
    assert (report.catch_up.mode, report.catch_up.cap, report.catch_up.max_age) == ("all", 1, 200 * SECOND)
    assert payload == {"command": ["/usr/bin/env", "LEVEL=1", "/bin/report", "--all", "7"]}
    every, payload = jobs["every"]
    assert every.schedule == Interval(90 * 60 * SECOND)
    assert (every.overlap, every.policy.retry.max_retries) == (Overlap.CANCEL, 6)
    assert payload == {"command": ["sync"]}
    assert {name: why.partition(",")[0].partition(":")[0] for name, why in refusals(found).items()} == {
        "image": "it runs the entry point of the image a",
        "suspended": "it is suspended; remove suspend to translate it",
        "two": "it must have exactly one container",
        "wrong": "hour",
    }
    warned = " ".join(warning for entry in found.translated for warning in entry.warnings)
    assert "the variable SECRET comes from the cluster" in warned
    assert "registry.example/report:1" in warned
    assert "skipped 1 objects that are not CronJobs" in found.notes


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["x", "0 0 * * *", "@every 1h", "$(A)", ""]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "image",
                    "command",
                    "args",
                    "env",
                    "value",
                    "valueFrom",
                    "containers",
                    "spec",
                    "template",
                    "schedule",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(anything, anything, anything)
def test_any_manifest_is_translated_or_refused(container: object, job: object, spec: object) -> None:
    from mainspring.features.schedules.commands.converters import kubernetes

    pod = {"template": {"spec": {"containers": [container]}}}
    manifest = {
        "kind": "CronJob",
        "metadata": {"name": "x"},
        "spec": {"schedule": "0 1 * * *", "jobTemplate": {"spec": {**pod, **(job if isinstance(job, dict) else {})}}}
        | (spec if isinstance(spec, dict) else {}),
    }
    found = kubernetes.convert(json.dumps(manifest), where="x", timezone=None)
    assert len(found.translated) + len(found.refused) == 1
    declared(found)


@given(st.text(max_size=60) | st.text("01*/-,~@% \\\n=AZ'\"#", max_size=60), st.booleans())
def test_any_crontab_is_translated_or_refused(text: str, system: bool) -> None:
    declared(cron(text, system=system))


@given(anything, anything, anything, anything)
def test_any_celery_entry_is_translated_or_refused(args: object, kwargs: object, every: object, odd: object) -> None:
    found = Conversion()
    entry = {"task": "t", "schedule": every, "args": args, "kwargs": kwargs, "options": odd}
    celery_beat._convert_entry(found, "x", entry, "UTC", {}, None)
    celery_beat._convert_entry(found, "y", odd, "UTC", {}, None)
    assert len(found.translated) + len(found.refused) == 2


def test_celery_arguments_are_converted_to_json_values() -> None:
    found = Conversion()
    odd = {"at": datetime(2026, 1, 2, tzinfo=UTC), "some": {1}, "sum": Decimal("1.5"), "pair": (1, 2)}
    celery_beat._convert_entry(found, "x", {"task": "t", "schedule": 60, "kwargs": odd}, "UTC", {}, None)
    [(_, payload)] = declared(found).values()
    assert payload == {"at": "2026-01-02T00:00:00Z", "some": [1], "sum": "1.5", "pair": [1, 2]}


# --- The command ----------------------------------------------------------------------------------------------------


def test_the_file_goes_to_stdout_and_the_report_to_stderr(tmp_path: Path) -> None:
    found = convert("crontab", "-", text="0 5 * * * report\n")
    [(spec, _)] = schedule_file.read_text(found.stdout)
    assert spec.name == "report"
    assert "ok" in found.stderr
    assert "1 translated, 0 refused" in found.stderr


def test_with_an_output_file_the_report_goes_to_stdout(tmp_path: Path) -> None:
    output = tmp_path / "schedules.yaml"
    (tmp_path / "tab").write_text("0 5 * * * report\n@reboot x\n")
    found = convert("crontab", str(tmp_path / "tab"), "--output", str(output), code=3)
    assert len(schedule_file.read_file(output)) == 1
    assert "# from line 1" in output.read_text()
    assert "@reboot is not a time" in found.stdout
    assert found.stderr == ""


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    output = tmp_path / "schedules.yaml"
    found = convert("crontab", "-", "--output", str(output), "--dry-run", text="0 5 * * * report\n")
    assert not output.exists()
    assert "report  0 5 * * *" in found.stdout
    assert "schedules:" not in found.stdout


def test_json_is_the_whole_report() -> None:
    found = json.loads(convert("crontab", "-", "--json", code=3, text="0 5 * * * report\n@reboot x\n").stdout)
    assert set(found) == {"translated", "refused", "notes"}
    assert found["translated"][0]["fields"]["cronExpression"] == "0 5 * * *"
    assert found["refused"] == [
        {"where": "line 2", "what": "x", "why": "@reboot is not a time: submit a job when the machine starts"}
    ]


def test_an_empty_crontab_becomes_an_empty_schedule_file() -> None:
    assert schedule_file.read_text(convert("crontab", "-", text="# none\n").stdout) == []


def test_every_source_has_a_command(source: Callable[[str, str], str], tmp_path: Path) -> None:
    source("celery_four", CELERY)
    assert "monday" in convert("celery-beat", "celery_four:app", "--dry-run", code=3).stdout
    source("aps_two", APSCHEDULER)
    assert "office" in convert("apscheduler", "aps_two:scheduler", "--dry-run", code=3).stdout
    (tmp_path / "x.yaml").write_text(MANIFESTS)
    assert "prod/report" in convert("kubernetes", str(tmp_path / "x.yaml"), "--dry-run", code=3).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["crontab", "absent"], "source: absent cannot be read: No such file or directory"),
        (["crontab", "x", "--tz", "Mars"], "--tz: 'Mars' is not a known time zone"),
        (["celery-beat", "nowhere:app"], "source: there is no module 'nowhere' here"),
        (["celery-beat", "absent.py"], "absent.py: cannot be read"),
        (["celery-beat", "json:loads"], "json:loads has no beat schedule"),
        (["apscheduler", "json"], "'json' is not of the form module:scheduler"),
        (["apscheduler", "json:loads"], "json has no scheduler called 'loads'"),
        (["kubernetes", "bad.yaml"], "bad.yaml, line 2: "),
        (["crontab", "bad.yaml", "-o", "no/where.yaml"], "--output: no/where.yaml cannot be written"),
        (["crontab", "latin"], "source: latin is not UTF-8"),
    ],
)
def test_a_mistake_is_one_line(refuse: Refuse, tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "bad.yaml").write_text("a: [\n")
    (tmp_path / "latin").write_bytes(b"\xe9")
    assert message in refuse("convert", *words)


@pytest.mark.parametrize("command", ["crontab", "celery-beat", "apscheduler", "kubernetes"])
def test_help_has_an_example_and_the_exit_codes(command: str) -> None:
    shown = " ".join(convert(command, "--help").stdout.split())
    assert "mainspring convert" in shown
    assert "Exit code" in shown
