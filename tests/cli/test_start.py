"""A process imports only the modules of its command."""

import subprocess
import sys
from typing import Any

import pytest
import typer

from mainspring.cli.main import _MODULES, build_application

COMMANDS = sorted({command for commands in _MODULES.values() for command in commands})


def describe(command: Any) -> Any:
    """The names, options and help of a command and of its subcommands."""
    inner = {name: describe(one) for name, one in getattr(command, "commands", {}).items()}
    return command.name, command.help, [(one.name, one.opts) for one in command.params], inner


@pytest.fixture(scope="module")
def everything() -> Any:
    return typer.main.get_command(build_application())


def test_the_table_of_modules_has_every_command(everything: Any) -> None:
    assert sorted(everything.commands) == COMMANDS


@pytest.mark.parametrize("word", COMMANDS)
def test_a_command_alone_is_the_same_as_among_all(word: str, everything: Any) -> None:
    alone: Any = typer.main.get_command(build_application(word))
    assert word in alone.commands
    assert describe(alone.commands[word]) == describe(everything.commands[word])


def test_an_unknown_word_is_compared_with_every_command(everything: Any) -> None:
    found: Any = typer.main.get_command(build_application("job"))
    assert sorted(found.commands) == sorted(everything.commands)


@pytest.mark.parametrize(
    ("code", "without"),
    [
        ("import mainspring", "msgspec"),
        ("from mainspring import Mainspring", "structlog"),
        ("from mainspring import Mainspring", "prometheus_client"),
        ("from mainspring import Mainspring", "mainspring.config.node"),
        ("import mainspring.cli.main", "mainspring.config.settings"),
        ("import mainspring.features.jobs.commands.jobs", "mainspring.config.runtime"),
    ],
)
def test_what_is_not_needed_is_not_imported(code: str, without: str) -> None:
    check = f"{code}\nimport sys\nsys.exit({without!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


#: Start-up time follows from the number of modules. A count that grows is a new import at the top of a module that
#: every process loads.
MOST_MODULES = {
    "import mainspring": (90, 2),
    "from mainspring import Mainspring": (520, 250),
    "import sys\nsys.argv = ['mainspring', '--version']\nfrom mainspring.cli import start\nstart()": (290, 35),
}


@pytest.mark.parametrize(("code", "most"), MOST_MODULES.items())
def test_start_up_imports_few_modules(code: str, most: tuple[int, int]) -> None:
    count = (
        "import atexit, sys\n"
        "def count():\n"
        "    own = [name for name in sys.modules if name.split('.')[0] == 'mainspring']\n"
        "    print(len(sys.modules), len(own))\n"
        "atexit.register(count)\n"
    )
    done = subprocess.run([sys.executable, "-c", count + code], check=True, capture_output=True, text=True)
    modules, own = map(int, done.stdout.splitlines()[-1].split())
    assert modules <= most[0]
    assert own <= most[1]
