"""A test that needs what is not there is skipped by name on a laptop, and fails in CI."""

import re
from pathlib import Path

import pytest

from tests.support import servers
from tools.services import Service, ServiceUnavailable

TESTS = Path(__file__).parents[1]


class Missing(Service):
    """One that cannot be had, and would leave a file behind."""

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
def test_a_server_that_cannot_be_had(
    in_ci: bool, outcome: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "IN_CI", in_ci)
    with pytest.raises(outcome, match="missing is not available: no such package"):
        servers.started(Missing(tmp_path))
    assert (tmp_path / "removed").exists()


def test_no_test_skips_in_another_way() -> None:
    for file in TESTS.rglob("*.py"):
        text = file.read_text()
        assert not re.search(r"except ServiceUnavailable.*\n(?:.*\n){0,3}? +pytest\.skip\(", text), file
        assert not re.search(r"pytest\.skip\(f?\".*is not (?:installed|available)", text), file
