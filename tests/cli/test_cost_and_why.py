"""``usage``, ``budgets``, ``jobs explain`` and ``runs explain``: their tables and their JSON."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Context, Mainspring
from mainspring.core.model.base.instant import MINUTE
from mainspring.core.runtime.system_clock import SystemClock
from mainspring.stores.sqlite.store import SqliteStore
from tests.support.clock import ManualClock
from tests.support.command_line import CommandResult, Site


class Store:
    """A store without workers, so that its runs stay as they are."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def call(self, *words: str) -> CommandResult:
        return self.site.call(*words, "--store", self.site.store)

    def run(self, *words: str) -> CommandResult:
        return self.site.run(*words, "--store", self.site.store)

    def lines(self, *words: str) -> list[list[str]]:
        return [line.split() for line in self.run(*words).out.splitlines()]


async def spend(store: str) -> None:
    app = Mainspring(store, name="billing")

    @app.task
    async def ask(context: Context, tokens: int) -> None:
        context.spend("tokens", tokens)

    async with app.running(scheduler=False):
        for handle in await app.submit_many([ask.prepare(tokens) for tokens in (700, 500)]):
            await handle.result("2m")
    # Attempts are counted some time after they complete.
    later = SqliteStore(Path(store), ManualClock(SystemClock().now() + MINUTE))
    await later.open()
    await later.tidy()
    await later.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder: Path = tmp_path_factory.mktemp("costs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "160")
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.chdir(folder)
        site = Site(folder, patch)
        asyncio.run(spend(site.store))
        yield Store(site)


def test_usage_is_listed_by_task_tenant_and_job(store: Store) -> None:
    # The runs may fall on two days.
    heads, *lines, total = store.lines("usage")
    assert heads == ["DAY", "TENANT", "TASK", "ATTEMPTS", "WALL", "CPU", "UNITS"]
    assert {(line[1], line[2], line[-1]) for line in lines} == {("default", "ask", "tokens")}
    assert sum(int(line[3]) for line in lines) == 2
    assert sum(int(line[-2].replace(",", "")) for line in lines) == 1200
    assert (total[0], total[-2:]) == ("total", ["1,200", "tokens"])
    [by_tenant, *_] = store.lines("usage", "--by", "tenant")
    assert by_tenant[:3] == ["DAY", "TENANT", "ATTEMPTS"]
    assert store.lines("usage", "--by", "job")[1][2] == "(one-offs)"
    assert set(store.run("usage", "--quiet").out.split()) == {"ask"}


def test_usage_as_json(store: Store) -> None:
    found = store.run("usage", "--json").json
    assert {line["key"] for line in found["items"]} == {"ask"}
    assert sum(line["cost"]["attempts"] for line in found["items"]) == 2
    assert sum(line["cost"]["units"]["tokens"] for line in found["items"]) == 1200
    assert found["total"]["units"] == {"tokens": 1200.0}
    assert store.run("usage", "--only", "nothing", "--json").json["items"] == []
    assert store.run("usage", "--only", "nothing").out.count("\n") <= 1, "no total of nothing"


def test_usage_refuses_an_invalid_day(store: Store) -> None:
    result = store.call("usage", "--since", "yesterday")
    assert (result.code, result.out) == (2, "")
    assert "since" in result.err


def test_a_budget_is_set_listed_and_deleted(store: Store) -> None:
    result = store.run("budgets", "create", "tokens", "--unit", "tokens", "--limit", "1000", "--then", "lower")
    assert result.out == "budget tokens: 0 of 1,000 tokens a month\n" or result.out.startswith(
        "budget tokens: 1,200 of"
    )
    heads, line = store.lines("budgets", "list")
    assert heads == ["BUDGET", "TENANT", "FOR", "USED", "THEN", "STATE"]
    assert line[:3] == ["tokens", "default", "tenant"]
    assert "lower" in line
    [budget] = store.run("budgets", "list", "--json").json["items"]
    assert (budget["name"], budget["unit"], budget["limit"], budget["then"]) == ("tokens", "tokens", 1000.0, "lower")
    assert store.run("budgets", "list", "--quiet").out == "tokens\n"
    assert store.run("budgets", "delete", "tokens").out == "budget tokens deleted\n"
    assert store.run("budgets", "list", "--json").json["items"] == []
    assert store.call("budgets", "delete", "tokens").code == 4


def test_an_invalid_budget_is_refused(store: Store) -> None:
    result = store.call("budgets", "create", "b", "--unit", "wall", "--limit", "1", "--task", "ask", "--then", "pause")
    assert (result.code, result.out) == (2, "")
    assert result.err


def test_explain_shows_why_a_run_waits(store: Store) -> None:
    run = store.run("jobs", "submit", "ask", "--arg", "tokens=1", "--queue", "mail", "--quiet").out.strip()
    result = store.run("runs", "explain", run).out
    assert result.splitlines()[0].endswith(" is queued")
    assert "  no live worker serves queue 'mail'\n" in result
    assert "  try: start one: mainspring worker MODULE:APP --queue mail\n" in result
    found = store.run("runs", "explain", run, "--json").json
    assert (found["runId"], found["status"]) == (run, "queued")
    assert [reason["code"] for reason in found["because"]] == ["no-worker"]
    assert store.call("runs", "explain", "0" * 32).code == 4


def test_explain_shows_whether_a_job_ran_at_a_time(store: Store) -> None:
    store.run("jobs", "submit", "ask", "--arg", "tokens=1", "--name", "weekday", "--cron", "0 9 * * MON-FRI", "--quiet")
    lines = store.run("jobs", "explain", "weekday", "--at", "2020-01-06T09:00:00Z").out.splitlines()
    assert lines[0] == "2020-01-06T09:00:00Z: there was nothing to run"
    assert lines[1].startswith("  ")
    found = store.run("jobs", "explain", "weekday", "--at", "2020-01-06T09:00:00Z", "--json").json
    assert (found["answer"], found["because"][0]["code"]) == ("no-tick", "before-the-job")
    ahead = store.run("jobs", "explain", "weekday").out
    assert ": it is in the future\n" in ahead
    store.run("jobs", "update", "weekday", "--set", "timezone=Europe/Paris")
    [local, *_] = store.run("jobs", "explain", "weekday", "--at", "2020-01-06 09:00").out.splitlines()
    assert local == "2020-01-06T08:00:00Z (2020-01-06 09:00 Europe/Paris): there was nothing to run"
    result = store.call("jobs", "explain", "weekday", "--at", "yesterday")
    assert (result.code, result.out) == (2, "")
    assert "at" in result.err
