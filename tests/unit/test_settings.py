"""Settings come from defaults, a file, the environment and flags, in that order."""

from pathlib import Path

import pytest

from mainspring.config.loading import load
from mainspring.config.sections.addresses import hide_secrets
from mainspring.config.settings import RANGES, describe
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MINUTE, SECOND


def test_every_setting_has_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load(environment={})
    assert (settings.store, settings.host, settings.port) == ("mainspring.db", "127.0.0.1", 7070)


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text('store = "file.db"\nport = 1\n[worker]\ngrace = "1m"\nqueues = { mail = 3 }\n')
    settings = load({"store": "flag.db"}, {"MAINSPRING_STORE": "env.db", "MAINSPRING_PORT": "2"}, file)
    assert (settings.store, settings.port, settings.worker.grace) == ("flag.db", 2, MINUTE)
    assert settings.worker.queues == {"mail": 3}


def test_nested_settings_are_read_from_the_environment() -> None:
    settings = load(environment={"MAINSPRING_WORKER_GRACE": "5s", "MAINSPRING_WORKER_QUEUES": "mail:20, default"})
    assert settings.worker.grace == 5 * SECOND
    assert settings.worker.queues == {"mail": 20, "default": 100}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", r"prot: is no setting \(did you mean port\?\)"),
        ("port = 'many'", r"port: 'many' is not a whole number"),
        ("port = 70000", r"port: 70000 is out of range"),
        ("port = 0", r"port: 0 is out of range \(1 to 65535\)"),
        ("port = 1" + "0" * 5_000, "is not TOML"),
        ("connections = 0", r"connections: 0 is out of range \(1 to 1000\)"),
        ("[worker]\nrecycle_after_runs = -5", r"worker\.recycle_after_runs: -5 is out of range"),
        ("[worker]\nrecycle_memory = -1", r"worker\.recycle_memory: -1 is out of range"),
        ("[worker]\nchildren = 0", r"worker\.children: 0 is out of range"),
        ("[worker]\nthreads_per_child = -3", r"worker\.threads_per_child: -3 is out of range"),
        ("[worker]\nname = 'a\tb'", r"worker\.name: .* is not a name"),
        ("[worker]\nqueues = { mail = -1 }", r"worker\.queues: mail:-1 is not a queue"),
        ("[worker]\nqueues = 'mail:²'", r"worker\.queues: mail:² is not a queue"),
        ("[worker]\nqueues = 'mail:1000000'", r"worker\.queues: mail:1000000 is not a queue"),
        ("[scheduler]\nname = ' x'", r"scheduler\.name: ' x' is not a name"),
        ("[scheduler]\nlease = 0", r"scheduler\.lease: 0s is out of range \(500ms to 1h\)"),
        ("[scheduler]\nlease = '50ms'", r"scheduler\.lease: 50ms is out of range \(500ms to 1h\)"),
        ("[retention]\nledger = '99999w'", r"retention\.ledger: 699993d is out of range \(0s to 36525d\)"),
        ("[worker]\ngrace = 'soon'", r"worker\.grace: 'soon' is not a duration"),
        ("[worker]\nqueues = 'mail:none'", r"worker\.queues: mail:none is not a queue"),
        ("[log]\nlevel = 'loud'", r"log\.level: 'loud' is not a level"),
        ("store = 3", r"store: 3 is not a text"),
        ("[tasks]\nhttp = 'perhaps'", r"tasks\.http: 'perhaps' is neither true nor false"),
        ("[tasks]\nhttp_allow = ['10.0.0.1/8']", r"tasks\.http_allow: '10\.0\.0\.1/8' is not a network"),
        ("store = ", "is not TOML"),
        ("host = '0.0.0.0'", "host: 0.0.0.0 is reachable from other machines.*mainspring keys create --role admin"),
        ("host = 'example.org'", "host: example.org is reachable from other machines"),
        ("[api]\nrate = 'fast'", r"api\.rate: 'fast' is not a number"),
        ("[api]\nrate = -1", r"api\.rate: -1 is out of range"),
        ("[api]\nrate = nan", r"api\.rate: nan is out of range"),
        ("[api]\nburst = 0", r"api\.burst: 0 is out of range"),
        ("[api]\ntrusted_proxies = [7]", r"api\.trusted_proxies: \[7\] is not a list of texts"),
        ("[api]\ntrusted_proxies = ['10.0.0.1/8']", r"api\.trusted_proxies: '10\.0\.0\.1/8' is not a network"),
        ("[api]\ntrusted_proxies = ['0.0.0.0/0']", r"api\.trusted_proxies: 0\.0\.0\.0/0 is everybody"),
    ],
)
def test_an_error_names_the_setting(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "m.toml"
    file.write_text(text)
    with pytest.raises(Invalid, match=message):
        load(environment={}, file=file)


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read"):
        load(environment={}, file=tmp_path / "absent.toml")


def test_an_error_in_the_environment_names_the_variable() -> None:
    with pytest.raises(Invalid, match="MAINSPRING_PORT: 'x' is not a whole number"):
        load(environment={"MAINSPRING_PORT": "x"})


def test_a_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_bytes(b"store = '\xff'")
    with pytest.raises(Invalid, match=r"m\.toml: is not TOML: 'utf-8' codec"):
        load(environment={}, file=file)


def test_a_misspelled_variable_is_rejected() -> None:
    with pytest.raises(Invalid, match=r"MAINSPRING_STROE: is no setting \(did you mean MAINSPRING_STORE\?\)"):
        load(environment={"MAINSPRING_STROE": "x"})
    with pytest.raises(Invalid, match=r"MAINSPRING_XYZZY: is no setting$"):
        load(environment={"MAINSPRING_XYZZY": "x"})


def test_variables_of_tests_benchmarks_and_kubernetes_are_left_alone() -> None:
    names = ("SEEDS", "BENCH_STAMPS", "SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT_7070_TCP_ADDR")
    load(environment={f"MAINSPRING_{name}": "x" for name in names})


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("mainspring.db", "mainspring.db"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://me:secret@host:5/db", "postgresql://me@host:5/db"),
        ("postgresql://me:se@cr/e#t@host/db", "postgresql://me@host/db"),
        ("postgresql://host/db?password=secret&sslpassword=secret", "postgresql://host/db"),
        ("postgresql://me:secret@host/db?sslmode=require&password=secret", "postgresql://me@host/db"),
        ("postgresql://me:sec?ret@host/db", "postgresql://…"),
        ("postgresql://me@host/db?password=sec@ret", "postgresql://…"),
    ],
)
def test_a_store_is_shown_without_its_secrets(store: str, shown: str) -> None:
    assert hide_secrets(store) == shown


def test_every_number_has_a_range() -> None:
    numbers = {path for path, default in describe() if default[:1].isdigit() and not path.endswith("host")}
    assert numbers == set(RANGES)


def test_the_reference_lists_every_setting_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/settings.md").read_text()
    computed = {"worker.name", "worker.queues", "scheduler.name"}
    for path, default in describe():
        assert page.count(f"\n| `{path}` |") == 1, path
        if path not in computed:
            shown = f"`{default}`" if default else "none"
            assert f"| `{path}` | {shown} |" in page, path


def test_built_in_tasks_are_safe_by_default_and_can_be_set_from_everywhere(tmp_path: Path) -> None:
    tasks = load(environment={}).tasks
    assert (tasks.http, tasks.http_allow, tasks.scripts, tasks.commands, tasks.env) == (True, (), "", False, ())
    file = tmp_path / "m.toml"
    file.write_text('[tasks]\nhttp = false\nhttp_allow = ["10.1.0.0/16"]\nscripts = "/srv/s"\n')
    tasks = load(
        environment={"MAINSPRING_TASKS_COMMANDS": "true", "MAINSPRING_TASKS_ENV": "TZ,REGION"}, file=file
    ).tasks
    assert tasks.env == ("TZ", "REGION")
    assert (tasks.http, tasks.http_allow, tasks.scripts, tasks.commands) == (False, ("10.1.0.0/16",), "/srv/s", True)


def test_commands_are_disabled_unrestricted_or_a_fixed_list(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text('[tasks]\ncommands = { disk = "df -k \'/a b\'", greet = ["echo", "hello"] }\n')
    expected = {"disk": ("df", "-k", "/a b"), "greet": ("echo", "hello")}
    assert load(environment={}, file=file).tasks.commands == expected
    words = "disk=df -k '/a b',greet=echo hello"
    assert load(environment={"MAINSPRING_TASKS_COMMANDS": words}).tasks.commands == expected
    assert load(environment={"MAINSPRING_TASKS_COMMANDS": "true"}).tasks.commands is True
    for wrong in ("disk=", "disk='", "disk=a,disk=b", "maybe"):
        with pytest.raises(Invalid, match=r"TASKS_COMMANDS|tasks\.commands"):
            load(environment={"MAINSPRING_TASKS_COMMANDS": wrong})


def test_secrets_are_for_the_default_tenant_unless_configured() -> None:
    assert load(environment={}).secrets.allow == {"default": ("*",)}
    allow = load(environment={"MAINSPRING_SECRETS_ALLOW": "acme=API_KEY HOOK_KEY,default=*"}).secrets.allow
    assert allow == {"acme": ("API_KEY", "HOOK_KEY"), "default": ("*",)}
    with pytest.raises(Invalid, match="'api-key' cannot be the name of a secret"):
        load(environment={"MAINSPRING_SECRETS_ALLOW": "acme=api-key"})


def test_a_secret_in_the_environment_is_not_a_setting() -> None:
    assert "hidden" not in repr(load(environment={"MAINSPRING_SECRET_API_KEY": "hidden value"}))


@pytest.mark.parametrize(
    ("name", "value"),
    [("TASKS_CONTAINERS", "lxc"), ("TASKS_NETWORK", "host"), ("TASKS_NETWORK", "--privileged"), ("TASKS_CPUS", "-1")],
)
def test_invalid_limits_of_programs_are_rejected(name: str, value: str) -> None:
    with pytest.raises(Invalid):
        load(environment={f"MAINSPRING_{name}": value})


@pytest.mark.parametrize(
    "given",
    [
        {"store": "postgresql://me:hidden@db/x"},
        {"coordination": "redis://me:hidden@db"},
        {"dispatch.broker": "amqp://me:hidden@mq/"},
        {"dispatch.queues": {"mail": "redis://me:hidden@db"}},
        {"events.kafka": "kafka://me:hidden@mq/topic"},
        {"events.redis": "redis://me:hidden@db/0"},
        {"events.status_updates": "kafka://me:hidden@mq/topic"},
        {"ingest.kafka": "kafka://me:hidden@mq/topic"},
    ],
)
def test_no_setting_shows_the_password_of_an_address(given: dict[str, object]) -> None:
    shown = dict(describe(load(given)))
    (path,) = given
    assert "hidden" not in " ".join(shown.values())
    assert "me@" in shown[path]
