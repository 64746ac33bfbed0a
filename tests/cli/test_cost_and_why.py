"""``usage``, ``budgets``, ``jobs explain`` and ``runs explain``: what people read, and what programs do."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mainspring import Context, Mainspring
from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.store.sqlite.store import SqliteStore
from mainspring.domain.instant import MINUTE
from tests.support.clock import ManualClock
from tests.support.command_line import Said, Site


class Store:
    """Nobody works on it while it is looked at."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def call(self, *words: str) -> Said:
        return self.site.call(*words, "--store", self.site.store)

    def done(self, *words: str) -> Said:
        return self.site.done(*words, "--store", self.site.store)

    def lines(self, *words: str) -> list[list[str]]:
        return [line.split() for line in self.done(*words).out.splitlines()]


async def work(store: str) -> None:
    app = Mainspring(store, name="billing")

    @app.task
    async def ask(context: Context, tokens: int) -> None:
        context.spend("tokens", tokens)

    async with app.running(scheduler=False):
        for handle in await app.submit_many([ask.prepare(tokens) for tokens in (700, 500)]):
            await handle.result("20s")
    # What has ended is counted a little later.
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
        asyncio.run(work(site.store))
        yield Store(site)


def test_usage_by_task_and_by_tenant(store: Store) -> None:
    heads, line, total = store.lines("usage")
    assert heads == ["DAY", "TENANT", "TASK", "ATTEMPTS", "WALL", "CPU", "UNITS"]
    assert line[1:4] == ["default", "ask", "2"]
    assert (line[-2:], total[0], total[-2:]) == (["1,200", "tokens"], "total", ["1,200", "tokens"])
    assert store.lines("usage", "--by", "tenant")[1][1:3] == ["default", "default"]
    assert store.lines("usage", "--by", "job")[1][2] == "(one-offs)"
    assert store.done("usage", "--quiet").out == "ask\n"


def test_usage_for_programs(store: Store) -> None:
    found = store.done("usage", "--json").json
    [line] = found["items"]
    assert (line["key"], line["cost"]["attempts"], line["cost"]["units"]) == ("ask", 2, {"tokens": 1200.0})
    assert found["total"]["units"] == {"tokens": 1200.0}
    assert store.done("usage", "--only", "nothing", "--json").json["items"] == []
    assert store.done("usage", "--only", "nothing").out.count("\n") <= 1, "no total of nothing"


def test_usage_of_no_day_names_the_option(store: Store) -> None:
    said = store.call("usage", "--since", "yesterday")
    assert (said.code, said.out) == (2, "")
    assert "since" in said.err


def test_the_life_of_a_budget(store: Store) -> None:
    said = store.done("budgets", "set", "tokens", "--unit", "tokens", "--limit", "1000", "--then", "lower")
    assert said.out == "budget tokens: 0 of 1,000 tokens a month\n" or said.out.startswith("budget tokens: 1,200 of")
    heads, line = store.lines("budgets", "list")
    assert heads == ["BUDGET", "TENANT", "FOR", "USED", "THEN", "STATE"]
    assert line[:3] == ["tokens", "default", "tenant"]
    assert "lower" in line
    [budget] = store.done("budgets", "list", "--json").json["items"]
    assert (budget["name"], budget["unit"], budget["limit"], budget["then"]) == ("tokens", "tokens", 1000.0, "lower")
    assert store.done("budgets", "list", "--quiet").out == "tokens\n"
    assert store.done("budgets", "delete", "tokens").out == "budget tokens is gone\n"
    assert store.done("budgets", "list", "--json").json["items"] == []
    assert store.call("budgets", "delete", "tokens").code == 4


def test_a_budget_that_makes_no_sense_is_refused(store: Store) -> None:
    said = store.call("budgets", "set", "b", "--unit", "wall", "--limit", "1", "--task", "ask", "--then", "pause")
    assert (said.code, said.out) == (2, "")
    assert said.err


def test_why_a_run_waits(store: Store) -> None:
    run = store.done("jobs", "submit", "ask", "--queue", "mail", "--quiet").out.strip()
    said = store.done("runs", "explain", run).out
    assert said.splitlines()[0].endswith(" is queued")
    assert "  no live worker takes queue 'mail'\n" in said
    assert "  try: start one: mainspring worker MODULE:APP --queue mail\n" in said
    found = store.done("runs", "explain", run, "--json").json
    assert (found["runId"], found["status"]) == (run, "queued")
    assert [reason["code"] for reason in found["because"]] == ["no-worker"]
    assert store.call("runs", "explain", "0" * 32).code == 4


def test_whether_a_job_ran(store: Store) -> None:
    store.done("jobs", "submit", "ask", "--name", "weekday", "--cron", "0 9 * * MON-FRI", "--quiet")
    lines = store.done("jobs", "explain", "weekday", "--at", "2020-01-06T09:00:00Z").out.splitlines()
    assert lines[0] == "2020-01-06T09:00:00Z: there was nothing to run"
    assert lines[1].startswith("  ")
    found = store.done("jobs", "explain", "weekday", "--at", "2020-01-06T09:00:00Z", "--json").json
    assert (found["answer"], found["because"][0]["code"]) == ("no-tick", "before-the-job")
    ahead = store.done("jobs", "explain", "weekday").out
    assert ": it is ahead\n" in ahead
    said = store.call("jobs", "explain", "weekday", "--at", "yesterday")
    assert (said.code, said.out) == (2, "")
    assert "at" in said.err
