"""``mainspring forecast`` as a user sees it: of an application, and of a store."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mainspring.cli.main import application
from mainspring.config.loading import load
from mainspring.config.runtime import Runtime
from mainspring.core.model.base.instant import HOUR, MINUTE, parse_instant
from mainspring.core.model.schedules.job import JobState
from mainspring.features.forecast.commands import draw_chart
from tests.cli.conftest import Refuse
from tests.support.builders import a_job, a_run, a_spec, every

TASKS = """
from mainspring import Mainspring

app = Mainspring()

@app.task
async def work() -> None: ...

for number in range(3):
    app.cron("0 * * * *", name=f"hourly-{number}")(work)
app.every("20s", name="poll")(work)
app.cron("H H * * *", name="nightly", jitter="5m")(work)
"""
FROM = ("--from", "2026-11-15T12:30:10Z")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "forecast_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "forecast_tasks:app"


def forecast(*words: str, **environment: str) -> Result:
    found = CliRunner().invoke(application, ["forecast", *words], catch_exceptions=False, env=environment)
    assert found.exit_code == 0, found.stderr
    return found


def test_a_forecast_of_an_application_needs_no_store(module: str, tmp_path: Path) -> None:
    shown = forecast(module, *FROM).stdout
    assert "4,393 runs of 5 schedules" in shown
    assert "from 2026-11-15T12:30:00Z to 2026-11-16T12:30:00Z" in shown
    assert "2026-11-15 13:00     6  poll 3, hourly-0 1, hourly-1 1 and 1 more" in shown
    assert "poll      4,320" in shown
    assert "1 schedule has a jitter of up to 5m" in shown
    assert "H is resolved from the job's id" in shown
    assert not list(tmp_path.glob("*.db*"))


def test_json_has_every_minute(module: str) -> None:
    found = json.loads(forecast(module, "--hours", "2", "--json", *FROM).stdout)
    assert found["minutes"] == len(found["perMinute"]) == 120
    assert found["runs"] == sum(found["perMinute"])
    assert found["peaks"][0] == {
        "at": "2026-11-15T13:00:00Z",
        "runs": 6,
        "makers": [
            {"name": "poll", "runs": 3},
            {"name": "hourly-0", "runs": 1},
            {"name": "hourly-1", "runs": 1},
            {"name": "hourly-2", "runs": 1},
        ],
        "others": 0,
    }
    assert found["totals"][0] == {"name": "poll", "runs": 360}


def test_a_forecast_of_a_store_includes_waiting_runs_and_leaves_out_paused_jobs(tmp_path: Path) -> None:
    store = str(tmp_path / "x.db")
    start = parse_instant("2126-11-15T12:30:00Z")

    async def fill() -> None:
        runtime = Runtime(load({"store": store}, environment={}))
        await runtime.open()
        try:
            jobs = [a_job(spec=a_spec(name=name, schedule=every(HOUR))) for name in ("kept", "paused")]
            jobs.append(a_job(spec=a_spec(name="foreign", schedule=every(HOUR)), tenant="acme"))
            put = await runtime.store.put_jobs(jobs)
            await runtime.store.set_jobs_state([put[1].job.id], JobState.PAUSED)
            await runtime.store.submit([a_run(at=start + 40 * MINUTE) for _ in range(7)])
            await runtime.store.submit([a_run(at=start + 40 * MINUTE, tenant="acme")])
        finally:
            await runtime.close()

    asyncio.run(fill())
    words = ("--store", store, "--json", "--hours", "2", "--from", "2126-11-15T12:30:00Z")
    found = json.loads(forecast(*words).stdout)
    assert {share["name"]: share["runs"] for share in found["totals"]} == {"kept": 2, "foreign": 2}
    assert (found["runs"], found["waiting"]) == (12, 8)
    assert found["peaks"][0]["makers"] == [{"name": "(waiting runs)", "runs": 8}]
    found = json.loads(forecast(*words, "--tenant", "acme").stdout)
    assert (found["runs"], found["waiting"], found["schedules"]) == (3, 1, 1)


def test_a_forecast_of_an_empty_store_is_zero(tmp_path: Path) -> None:
    CliRunner().invoke(application, ["migrate", "--store", str(tmp_path / "x.db")], catch_exceptions=False)
    shown = forecast("--store", str(tmp_path / "x.db")).stdout
    assert shown.startswith("0 runs of 0 schedules\n")


@pytest.mark.parametrize("columns", [40, 80, 160])
@pytest.mark.parametrize("hours", [1, 6, 24, 48, 744])
def test_the_chart_fits_the_terminal_and_labels_its_hours(module: str, columns: int, hours: int) -> None:
    shown = forecast(module, "--hours", str(hours), *FROM, COLUMNS=str(columns)).stdout
    assert max(map(len, shown.splitlines())) <= columns
    axis = shown[shown.index("└") :].splitlines()[1].split()
    assert axis
    assert len(axis) == len(set(axis)) or hours > 24
    assert all(len(label) == 5 and label[2] in ":-" for label in axis)


def test_the_height_of_a_bar_is_its_number_of_runs() -> None:
    start = parse_instant("2026-11-15T12:00:00Z")
    lines = draw_chart([0, 1, 8, 16], start, 80)
    assert lines[0] == "runs per minute; times are UTC"
    assert [line[4:] for line in lines[1:9]] == ["   █", "   █", "   █", "   █", "  ██", "  ██", "  ██", " ▄██"]
    assert lines[1].startswith("16 ┤")
    assert lines[9:] == ["   └┴───", "    12:00"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere:app"], "there is no module 'nowhere' here"),
        (["forecast_tasks:app", "--store", "x.db"], "omit --store and --tenant"),
        (["--hours", "0"], "'--hours'"),
        (["--from", "9999-12-31T12:00:00Z"], "--from: is out of range"),
        (["--from", "today"], "--from: 'today' is not a time"),
        (["--store", "mysql://x"], "mysql:// is not a store"),
    ],
)
def test_a_mistake_is_one_line(refuse: Refuse, words: list[str], message: str) -> None:
    assert message in refuse("forecast", *words)
