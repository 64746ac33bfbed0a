"""Mistakes of a user: one line with the error, an exit status, and never a traceback or a password."""

import asyncio
import re
import sys
import urllib.request
from pathlib import Path

import asyncpg
import pytest

from mainspring.cli.main import _ACTING, main
from mainspring.config.loading import load
from mainspring.config.node import Node, Role
from tests.cli.conftest import Refuse
from tests.support.command_line import run_command
from tests.support.processes import free_port


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A migrated store. Refused commands leave it as it is."""
    folder = tmp_path_factory.mktemp("store")
    run_command(folder, "migrate", "--store", str(folder / "x.db"))
    return str(folder / "x.db")


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("postgresql://me@127.0.0.1:99999/x", "store: the address of PostgreSQL is wrong: .* port must be 0-65535"),
        ("postgresql://me@127.0.0.1:1/x?sslmode=some", "store: the address of PostgreSQL is wrong: `sslmode`"),
        ("postgresql://me@a..b/x", r"store: the address of PostgreSQL cannot be read \(postgresql://user:"),
        ("postgresql://me:hid/den@host/x", r"store: the address of PostgreSQL cannot be read \(postgresql://user:"),
        ("postgres:host", r"store: postgres: is not a store \(a path,"),
        ("sqlite://x.db", r"store: sqlite:// is not a store \(a path,"),
        (":memory:", r"store: :memory: is not a store \(memory: for nothing lasting,"),
        ("memory", r"store: memory is not a store \(memory: for nothing lasting, \./memory for a file\)"),
        (".", r"store: /.* is a directory \(a file in it, such as /.*/mainspring\.db\)"),
        (f"{'a' * 300}/x.db", "cannot be reached: File name too long"),
        ("~nobody-of-that-name/x.db", "store: ~nobody-of-that-name/x.db: "),
    ],
)
def test_an_invalid_store_is_refused(tmp_path: Path, refuse: Refuse, store: str, message: str) -> None:
    line = refuse("migrate", "--store", store)
    assert re.search(message, line), line
    assert "hid" not in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--prot", "1"], "No such option: --prot"),
        (["up", "--port", "x"], "Invalid value for '--port'"),
        (["up", "--port", "0"], "mainspring: --port: 0 is out of range"),
        (["up", "--log-level", "x"], "mainspring: --log-level: 'x' is not a level"),
        (["up", "-q", "mail:x"], "mainspring: -q: "),
        (["up", "--scripts", "/nowhere"], "--scripts: /nowhere is not a folder"),
        (["worker", "--scripts", "/nowhere"], "--scripts: /nowhere is not a folder"),
        (
            ["worker", "mainspring.demo.application:app", "--priority", "1:0"],
            "--priority: 1:0 is not a priority with its slots (1 to 10 and at least 1 slot, for example 1:100,2:50)",
        ),
        (["worker", "mainspring.demo.application:app", "--priority", "11:5"], "--priority: 11:5 is not a priority"),
        (["bench", "--seconds", "inf"], "Invalid value for '--seconds'"),
        (["bench", "--store", "memory:", "--only", "idle"], "--store: memory: is of one process"),
        (["bench", "--store", ":memory:", "--only", "idle"], "store: :memory: is not a store"),
        (["bench", "--store", f"{'a' * 300}/x", "--only", "idle"], "cannot be reached: File name too long"),
    ],
)
def test_a_wrong_option_is_refused(refuse: Refuse, arguments: list[str], message: str) -> None:
    assert message in refuse(*arguments)


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        (["schedule", "list"], "schedules"),
        (["sheduler"], "schedulers"),
        (["wrkers"], "workers"),
        (["workr"], "workers"),
        (["job"], "jobs"),
        (["workflow", "list"], "workflows"),
        (["help", "queue"], "queues"),
    ],
)
def test_a_misspelled_noun_is_answered_with_a_noun(refuse: Refuse, words: list[str], suggested: str) -> None:
    assert refuse(*words).endswith(
        f"No such command '{words[-1] if words[0] == 'help' else words[0]}'. Did you mean '{suggested}'?"
    )


@pytest.mark.parametrize("command", sorted(_ACTING))
def test_a_command_that_starts_something_is_never_suggested(refuse: Refuse, command: str) -> None:
    for misspelled in (command[:-1], f"{command}p", command[1:], f"{command[0]}{command}"):
        line = refuse(misspelled)
        assert f"No such command '{misspelled}'" in line
        assert f"'{command}'" not in line


def test_a_misspelled_verb_is_answered_with_a_verb(refuse: Refuse) -> None:
    assert refuse("jobs", "lst").endswith("No such command 'lst'. Did you mean 'list'?")


@pytest.mark.parametrize(("verb", "noun"), [("create", "jobs"), ("rnu", "jobs"), ("backfil", "jobs")])
def test_a_verb_that_changes_something_is_never_suggested(refuse: Refuse, verb: str, noun: str) -> None:
    assert refuse(noun, verb).endswith(f"No such command '{verb}'. 'mainspring help {noun}' lists the commands.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--every", "x", "--name", "n"), "--every: is not a duration"),
        (("--every", "1M", "--name", "n"), "--every: is not a duration"),
        (("--every=x", "--name", "n"), "--every: is not a duration"),
        (("--cron", "x", "--name", "n"), "--cron: has 1 fields"),
        (("--cron", "@daily", "--name", "n", "--tz", "Mars/X"), "--tz: 'Mars/X' is not a known time zone"),
        (("--at", "2020-01-01T00:00:00Z"), "--at: 2020-01-01T00:00:00Z is "),
        (("--delay", "x"), "--delay: is not a duration"),
        (("--timeout", "x"), "--timeout: is not a duration"),
        (("--retries", "5000"), "--retries: must be at most 1000"),
        (("--limit", "a=3/x"), "--limit: is not a duration"),
        (("--tag", "x" * 300), "--tag: must have at most 200 characters"),
        (("-q", "x" * 300), "-q: must have at most 200 characters"),
        (("--unique", "x" * 300), "--unique: "),
        (("--set", "jitter=x", "--cron", "@daily", "--name", "n"), "--set jitter: is not a duration"),
        (("--set", "retry.firstDelay=1"), "--set retry.firstDelay: is no field of this"),
        (("--set=startWithin=x",), "--set startWithin: is not a duration"),
        (("--cron", "@daily"), "--name: is missing (a recurring job is known by its name)"),
        (("--config", "none.toml"), "--config none.toml: cannot be read: "),
    ],
)
def test_an_error_names_the_option_that_was_typed(
    migrated: str, refuse: Refuse, options: tuple[str, ...], message: str
) -> None:
    assert refuse("jobs", "submit", "t", *options, "--store", migrated).startswith(f"mainspring: {message}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("dead-letters", "list", "--group", "x"), "--group: does not have the right form"),
        (("calendars", "preview", "x", "--from", "x"), "--from: is not a time with a zone"),
        (("plan", "--file", "none.toml"), "--file none.toml: cannot be read: "),
        (("plan", "-f", "none.toml"), "-f none.toml: cannot be read: "),
        (("plan", "--file=none.toml"), "--file none.toml: cannot be read: "),
    ],
)
def test_an_error_names_the_option_of_a_filter_or_file(
    migrated: str, refuse: Refuse, words: tuple[str, ...], message: str
) -> None:
    assert refuse(*words, "--store", migrated).startswith(f"mainspring: {message}")


def test_completion_without_a_shell_names_the_shells(refuse: Refuse) -> None:
    assert refuse("completion") == "mainspring: Missing argument 'SHELL'. Choose from: bash, zsh, fish"


def test_an_error_of_a_setting_keeps_its_name(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_PORT", "none")
    assert refuse("up").startswith("mainspring: MAINSPRING_PORT: ")


def test_a_settings_file_that_is_not_text_is_refused(tmp_path: Path, refuse: Refuse) -> None:
    (tmp_path / "mainspring.toml").write_bytes(b"\xff\xfe")
    assert "mainspring.toml: is not TOML: 'utf-8' codec" in refuse("migrate")


def test_a_mistyped_variable_is_refused_with_a_suggestion(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_STROE", "x")
    assert "MAINSPRING_STROE: is no setting (did you mean MAINSPRING_STORE?)" in refuse("migrate")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("at_import", "def fail():\n    return 1 / 0\n\nfail()\n", r"ZeroDivisionError: .*at_import\.py, line 2\)$"),
        ("of_import", "\nimport no_such_module\n", r"No module named 'no_such_module' \(.*of_import\.py, line 2\)$"),
        ("syntax", "\n\nx = (\n", r"SyntaxError: .*\(syntax\.py, line 3\)$"),
        ("leaves", "import sys\nsys.exit(3)\n", r"SystemExit: 3 \(.*leaves\.py, line 2\)$"),
        ("lines", "raise ValueError('one\\ntwo')\n", r"ValueError: one; two \(.*lines\.py, line 1\)$"),
        (
            "schedule",
            "from mainspring import Mainspring\napp = Mainspring()\n@app.cron('soon')\nasync def f() -> None: ...\n",
            r"Invalid: expression: .*schedule\.py, line 3\)$",
        ),
    ],
)
def test_an_application_that_cannot_be_imported_is_reported_with_its_line(
    tmp_path: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    (tmp_path / f"broken_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = refuse("worker", f"broken_{name}:app")
    assert re.search(message.replace(f"{name}\\.py", f"broken_{name}\\.py"), found), found


@pytest.mark.postgres
async def test_a_database_role_without_rights_is_reported(tmp_path: Path, postgres_database: str) -> None:
    connection = await asyncpg.connect(postgres_database)
    try:
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(f"REVOKE ALL ON DATABASE {name} FROM CURRENT_USER")
    finally:
        await connection.close()
    for command in ("migrate", "scheduler"):
        found = run_command(tmp_path, command, "--store", postgres_database)
        assert found.returncode == 2
        (line,) = found.stderr.splitlines()
        assert line == f"mainspring: --store: PostgreSQL refused: permission denied for database {name}"


def test_a_benchmark_of_an_unreachable_server_prints_no_password(tmp_path: Path) -> None:
    dsn = "postgresql://me:hidden@127.0.0.1:1/x?password=hidden"
    found = run_command(tmp_path, "bench", "--quick", "--only", "idle", "--store", dsn)
    assert found.returncode == 6
    assert len(found.stderr.splitlines()) == 1
    assert "idle on postgresql://me@127.0.0.1:1/x: about" in found.stdout
    assert "hidden" not in found.stdout + found.stderr


def test_the_banner_has_the_pools_of_a_worker_in_place_of_the_slots_of_its_queues() -> None:
    fields = {"store": "memory:", "worker.queues": "payouts:100,mail:20"}
    assert Node(load(fields, environment={}), {Role.WORKER}).build_banner().endswith("; queues payouts:100, mail:20")
    pools = load({**fields, "worker.priorities": "1:100,2:50,3:20"}, environment={})
    assert (
        Node(pools, {Role.WORKER})
        .build_banner()
        .endswith("; queues payouts, mail; slots by priority 1:100, 2:50, 3:20")
    )


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
async def test_the_server_listens_on_every_host_that_the_settings_allow(host: str) -> None:
    settings = load({"store": "memory:", "host": host, "port": free_port()}, environment={})
    node = Node(settings, {Role.HTTP})
    address = f"{'[::1]' if host == '::1' else host}:{settings.port}"
    assert f" dashboard http://{address}/\n" in node.build_banner()
    assert f" API http://{address}/docs " in node.build_banner()
    without = load({"store": "memory:", "ui.enabled": False}, environment={})
    assert "dashboard" not in Node(without, {Role.HTTP}).build_banner()

    await node.start()
    try:
        assert await asyncio.to_thread(_status, address) == 200
    finally:
        await node.stop()
        await node.runtime.close()


def _status(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/healthz", timeout=60) as answer:
        return int(answer.status)


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[object, str]:
    monkeypatch.setattr(sys, "argv", ["mainspring", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code, capsys.readouterr().err


def test_an_empty_job_name_is_refused(tmp_path: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script whose variable is not set must not cancel the only job without a name."""
    monkeypatch.setenv("MAINSPRING_STORE", str(tmp_path / "x.db"))
    run_command(tmp_path, "migrate", "--store", str(tmp_path / "x.db"))
    run_command(tmp_path, "jobs", "submit", "t", "--delay", "1h", "--store", str(tmp_path / "x.db"))
    assert "job: is empty" in refuse("jobs", "cancel", "")
    assert "job: is empty" in refuse("jobs", "show", " ")


@pytest.mark.parametrize("key", ["schlüssel", "a\nb", "a b", "\t"])
def test_an_invalid_key_is_refused_and_not_shown(refuse: Refuse, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MAINSPRING_KEY", key)
    line = refuse("jobs", "list", "--url", "http://127.0.0.1:1")
    assert line.startswith("mainspring: key: is not a key")
    assert key.strip() == "" or key not in line


def test_a_cron_expression_and_an_interval_are_refused_together(
    migrated: str, refuse: Refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_STORE", migrated)
    both = ("--name", "r", "--cron", "0 0 * * *", "--every", "10m")
    assert "--every: does not go with cronExpression" in refuse("jobs", "submit", "t", *both)
    (tmp_path / "both.yaml").write_text("schedules:\n- {name: a, task: t, cronExpression: '0 0 * * *', every: 10m}\n")
    assert "does not go with cronExpression" in refuse("plan", "-f", "both.yaml")


def test_commands_on_the_store_ignore_the_url_and_use_the_profile(
    tmp_path: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("MAINSPRING_URL", "http://127.0.0.1:1")
    for command in ("forecast", "doctor", "migrate"):
        assert "--store: is needed" in refuse(command)
    monkeypatch.delenv("MAINSPRING_URL")
    elsewhere = tmp_path / "elsewhere" / "x.db"
    elsewhere.parent.mkdir()
    monkeypatch.chdir(tmp_path)
    code, line = call(capsys, monkeypatch, "forecast")
    assert (code, "there is no store mainspring.db" in line) == (6, True)
    assert not (tmp_path / "mainspring.db").exists()
    run_command(tmp_path, "migrate", "--store", str(elsewhere))
    call(capsys, monkeypatch, "profiles", "create", "away", "--store", str(elsewhere))
    call(capsys, monkeypatch, "profiles", "use", "away")
    assert call(capsys, monkeypatch, "forecast", "--json")[0] in (None, 0)
    assert call(capsys, monkeypatch, "doctor", "--profile", "away")[0] in (None, 0, 1)
    assert not (tmp_path / "mainspring.db").exists()


def test_move_refuses_a_file_that_is_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.py").write_text("print('hello')\n" * 200)
    monkeypatch.chdir(tmp_path)
    code, line = call(capsys, monkeypatch, "move", "--from", "tasks.py", "--to", "postgresql://127.0.0.1:1/x")
    assert (code, line.count("\n")) == (6, 1)
    assert "tasks.py cannot be read" in line


def test_events_of_an_unreachable_api_is_exit_code_6(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, monkeypatch, "events", "--url", "http://127.0.0.1:1")[0] == 6


def test_a_noun_without_a_verb_shows_its_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, monkeypatch, "jobs") == (2, "")
