"""Settings come from defaults, a file, the environment and flags, in that order."""

from pathlib import Path

import pytest

from mainspring.domain.errors import Invalid
from mainspring.domain.instant import MINUTE, SECOND
from mainspring.settings import describe, load


def test_defaults_need_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load(environment={})
    assert (settings.store, settings.host, settings.port) == ("mainspring.db", "127.0.0.1", 7070)


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text('store = "file.db"\nport = 1\n[worker]\ngrace = "1m"\nqueues = { mail = 3 }\n')
    settings = load({"store": "flag.db"}, {"MAINSPRING_STORE": "env.db", "MAINSPRING_PORT": "2"}, file)
    assert (settings.store, settings.port, settings.worker.grace) == ("flag.db", 2, MINUTE)
    assert settings.worker.queues == {"mail": 3}


def test_nested_settings_have_names_in_the_environment() -> None:
    settings = load(environment={"MAINSPRING_WORKER_GRACE": "5s", "MAINSPRING_WORKER_QUEUES": "mail:20, default"})
    assert settings.worker.grace == 5 * SECOND
    assert settings.worker.queues == {"mail": 20, "default": 100}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", r"prot: is no setting \(did you mean port\?\)"),
        ("port = 'many'", r"port: 'many' is not a whole number"),
        ("port = 70000", r"port: 70000 is out of range"),
        ("[worker]\ngrace = 'soon'", r"worker\.grace: 'soon' is not a duration"),
        ("[worker]\nqueues = 'mail:none'", r"worker\.queues: mail:none is not a queue"),
        ("[log]\nlevel = 'loud'", r"log\.level: 'loud' is no level"),
        ("store = 3", r"store: 3 is not a text"),
        ("store = ", "is not TOML"),
        ("host = '0.0.0.0'", "host: 0.0.0.0 can be reached from outside"),
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


def test_the_reference_lists_every_setting_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/settings.md").read_text()
    computed = {"worker.name", "worker.queues", "scheduler.name"}
    for path, default in describe():
        assert f"| `{path}` |" in page, path
        if path not in computed:
            assert f"| `{path}` | `{default}` |" in page, path
