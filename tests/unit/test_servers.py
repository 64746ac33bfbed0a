"""A test whose server is missing is skipped on a laptop and fails in CI."""

import re
from pathlib import Path

import pytest

from tests.support import servers
from tools.services import Service, ServiceUnavailable

TESTS = Path(__file__).parents[1]


class Missing(Service):
    """A service that cannot be installed. ``remove`` leaves a file, so that tests can see the call."""

    name = "missing"
    packages = ()

    def installed(self) -> bool:
        return False

    def install(self) -> None:
        raise ServiceUnavailable("no such package")

    def running(self) -> bool:
        return False

    def address(self) -> str:
        return ""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def remove(self) -> None:
        (self.home / "removed").touch()


@pytest.mark.parametrize(("in_ci", "outcome"), [(False, pytest.skip.Exception), (True, pytest.fail.Exception)])
def test_a_missing_server_skips_the_test_on_a_laptop_and_fails_it_in_ci(
    in_ci: bool, outcome: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "IN_CI", in_ci)
    monkeypatch.setattr(servers, "ALLOWED", None)
    with pytest.raises(outcome, match="missing is not available: no such package"):
        servers.started(Missing(tmp_path))
    assert (tmp_path / "removed").exists()


def test_a_server_that_the_run_leaves_out_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "ALLOWED", "postgres,redis")
    servers.require("redis")
    with pytest.raises(pytest.skip.Exception, match="missing is left to make test-all"):
        servers.started(Missing(tmp_path))
    assert not (tmp_path / "removed").exists()


def test_no_test_skips_for_a_missing_server_by_itself() -> None:
    for file in TESTS.rglob("*.py"):
        text = file.read_text()
        assert not re.search(r"except ServiceUnavailable.*\n(?:.*\n){0,3}? +pytest\.skip\(", text), file
        assert not re.search(r"pytest\.skip\(f?\".*is not (?:installed|available)", text), file
