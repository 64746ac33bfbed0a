"""Fixtures for the tests of the command line."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.cli.main import main

#: Runs a command in this process that must fail with exit code 2, and returns its one line of error.
Refuse = Callable[..., str]


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refuse:
    def run(*arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["mainspring", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("mainspring: ")
        return line

    return run
