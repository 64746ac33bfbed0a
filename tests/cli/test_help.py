"""The help of the command line: every command has a theme, and no type is a word of Python."""

import re

import pytest
from typer.testing import CliRunner

from mainspring.cli.help import THEMES
from mainspring.cli.main import build_application, build_command


def test_every_command_has_one_theme() -> None:
    named = [name for names in THEMES.values() for name in names]
    assert len(named) == len(set(named))
    assert set(named) == set(build_command().commands)


@pytest.mark.parametrize("words", ["", "jobs submit", "runs list", "worker", "completion"])
def test_help_names_no_type_of_python(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    build_command()([*words.split(), "--help"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert re.search(r"<(str|bool|int|float|Path)>|list\[", shown) is None
    assert "-h" in shown


def test_the_commands_of_the_application_are_those_of_the_help() -> None:
    shown = CliRunner().invoke(build_application(), ["--help"]).output
    assert all(f" {name} " in shown for names in THEMES.values() for name in names)
