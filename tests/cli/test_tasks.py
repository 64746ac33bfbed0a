"""``mainspring tasks`` and jobs that are submitted by the name of their task."""

from collections.abc import Iterator

import pytest

from tests.support.command_line import CommandResult, Site, running_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site")) as made:
        key = made.run("keys", "create", "--role", "admin", "--all-tenants", "--store", made.store)
        made.run("profiles", "create", "prod", "--url", made.url, "--key-stdin", stdin=key.out)
        yield made


@pytest.fixture(params=["store", "api"])
def where(request: pytest.FixtureRequest, site: Site) -> tuple[str, ...]:
    return ("--store", site.store) if request.param == "store" else ("--profile", "prod")


def test_tasks_are_listed(site: Site, where: tuple[str, ...]) -> None:
    lines = site.run("tasks", "list", *where).out.splitlines()
    assert lines[0].split()[:3] == ["TASK", "QUEUE", "PRIORITY"]
    assert [line.split()[0] for line in lines[1:]] == [
        *("broken", "charge", "fan_out", "http", "send", "slow", "weekly_report", "workflow")
    ]
    assert site.run("tasks", "list", "--quiet", "--text", "CHARGE", *where).out == "charge\n"
    [item] = site.run("tasks", "list", "--json", "--text", "charge", *where).json["items"]
    assert (item["queue"], item["workers"]) == ("default", 1)


def test_a_task_is_shown_with_its_arguments(site: Site, where: tuple[str, ...]) -> None:
    out = site.run("tasks", "show", "charge", *where).out
    for words in (
        "Charge a customer.",
        "customer: integer, required",
        'currency: "EUR" | "USD" = "EUR"',
        "to: Address | null = null",
        "notes: array of string = []",
        "default, priority 2",
        "2 of customer:{payload.customer} at a time",
    ):
        assert words in out, out
    shown = site.run("tasks", "show", "charge", "--json", *where).json
    assert shown["arguments"]["required"] == ["customer"]
    assert site.run("tasks", "show", "charge", "--quiet", *where).out == "charge\n"


def test_an_unknown_task_is_an_error(site: Site, where: tuple[str, ...]) -> None:
    result = site.call("tasks", "show", "nothing", *where)
    assert (result.code != 0, len(result.err.splitlines())) == (True, 1)


def test_a_submit_has_the_options_of_its_task(site: Site, where: tuple[str, ...]) -> None:
    job = site.run("jobs", "submit", "charge", "--arg", "customer=7", "--json", *where).json
    assert (job["priority"], job["timeout"], job["maxRetries"]) == (2, "1m", 5)
    assert job["limits"] == [{"key": "customer:7", "most": 2}]
    job = site.run("jobs", "submit", "charge", "--arg", "customer=7", "--priority", "9", "--json", *where).json
    assert (job["priority"], job["timeout"]) == (9, "1m")


def test_a_wrong_argument_is_named(site: Site, where: tuple[str, ...]) -> None:
    result: CommandResult = site.call("jobs", "submit", "charge", "--arg", "customer=ada", *where)
    assert (result.code, result.err) == (2, "mainspring: --arg customer: expected 'int', got 'str'\n")


def test_schedules_of_a_file_have_the_options_of_their_task(site: Site, where: tuple[str, ...]) -> None:
    (site.folder / "schedules.yaml").write_text(
        "schedules:\n"
        "  - {name: monthly, task: charge, payload: {customer: 1}, cronExpression: '0 0 1 * *', priority: 7}\n"
    )
    site.call("apply", "-f", "schedules.yaml", "--tenant", "default", *where)
    job = site.run("jobs", "show", "monthly", "--json", *where).json
    assert (job["priority"], job["timeout"], job["maxRetries"]) == (7, "1m", 5)
    assert "nothing to do" in site.run("plan", "-f", "schedules.yaml", "--tenant", "default", *where).out
