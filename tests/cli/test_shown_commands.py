"""Every command that the dashboard, the documentation and the advice of the product show exists."""

import ast
import html
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from bench.__main__ import application as benchmark
from mainspring.cli.main import build_application

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
#: A line of a script or of a Procfile, also with a prompt or with variables in front.
_LINE = re.compile(r"^\s*(?:\$ |[a-z]+: )?(?:[A-Z_]+=\S+ )*(mainspring [a-z].*)", re.MULTILINE)
_END = re.compile(r" \|{1,2} | && | [0-9]?>+ | < | &$|; ")
#: In a sentence: the command ends where the sentence continues.
_MENTION = re.compile(r"(?<![\w./-])mainspring((?: [a-z][a-z-]*)+(?: [A-Z:]+| --?[a-z-]+| \S*=\S*)*)")
#: Modules whose texts advise a command; the dashboard shows them too. Every mention there has to be a command.
_ADVICE = (
    "core/model/cluster/diagnosis.py",
    "core/model/explain/*.py",
    "core/model/runs/restored.py",
    "stores/*/upkeep/health.py",
    "stores/postgres/upkeep/findings.py",
)


@cache
def build_command_line() -> Any:
    """Return the command line without the options that act as soon as they are parsed, such as --version."""
    command: Any = typer.main.get_command(build_application())
    for parameter in command.params:
        parameter.callback = None
    # The product passes the options of the benchmark on without reading them.
    command.commands["bench"] = typer.main.get_command(benchmark)
    return command


def parse(arguments: list[str]) -> None:
    """Parse the arguments as the command line does, and run nothing."""
    command, context, name = build_command_line(), None, "mainspring"
    while True:
        try:
            context = command.make_context(name, list(arguments), parent=context)
        except typer.Exit:
            # --help
            return
        rest = [*context._protected_args, *context.args] if hasattr(command, "commands") else []
        if not rest:
            return
        name, command, arguments = command.resolve_command(context, rest)


def check_mention(words: list[str]) -> None:
    """Check the names of the command and of its options; its arguments may be left out."""
    command = build_command_line()
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if command.name in ("backup", "restore"):
        # They take a file, too.
        return
    assert command.name != "mainspring", f"no such command: {words[0]}"
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options | {"--help"}
    if hasattr(command, "commands") and words and not words[0].startswith("-"):
        raise AssertionError(f"no such command: {command.name} {words[0]}")


def find_templates() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "src/mainspring").rglob("templates/**/*.html")):
        for text in re.findall(r"<code>(mainspring .*?)</code>", path.read_text()):
            yield path.name, html.unescape(re.sub(r"\{\{.*?\}\}", "x", text))


def find_scripts() -> Iterator[tuple[str, str]]:
    """Return the commands in code blocks. Blocks of plain text show output, except in the reference of commands."""
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        for kind, block in _FENCE.findall(path.read_text()):
            if kind in ("sh", "bash", "console", "shell", "procfile") or path.name == "cli.md":
                for line in _LINE.findall(block.replace("\\\n", " ")):
                    yield path.name, _END.split(line)[0]


def find_mentions() -> Iterator[tuple[str, list[str]]]:
    """Return commands in sentences: of the documentation in backquotes, of the product in all of its texts."""
    advice = {path for pattern in _ADVICE for path in (ROOT / "src/mainspring").glob(pattern)}
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        for text in re.findall(r"(?<!`)`(mainspring [a-z][^`]*)`", _FENCE.sub("", path.read_text())):
            # "list|show" stands for each of them.
            *before, last = text.split(" --")[0].split()[1:3] or [""]
            for word in last.split("|"):
                yield path.name, [*before, word, *text.split()[1 + len(before) + 1 :]]
    for path in sorted((ROOT / "src/mainspring").rglob("*.py")):
        for text in find_texts(path):
            for found in _MENTION.findall(text):
                words = found.split()
                # A misspelled command would be taken for a thread or a file, such as "mainspring script".
                if words[0] in build_command_line().commands or path in advice:
                    yield path.name, words


def find_texts(path: Path) -> Iterator[str]:
    """Return the texts in a module, with X for each value."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize(("path", "line"), sorted({*find_templates(), *find_scripts()}))
def test_a_shown_command_is_accepted_by_the_command_line(path: str, line: str) -> None:
    parse(shlex.split(line, comments=True)[1:])


def test_a_mentioned_command_and_its_options_exist() -> None:
    for path, words in find_mentions():
        said = " ".join(words)
        try:
            check_mention(words)
        except AssertionError as error:
            raise AssertionError(f"{path}: mainspring {said}: {error}") from None


@pytest.mark.parametrize(
    "line", ["worker tasks:app --queues mail", "calendars put", "schedules apply", "runs show", "bench --onyl full"]
)
def test_a_wrong_command_is_found(line: str) -> None:
    with pytest.raises(Exception, match=r"No such|Missing parameter") as error:
        parse(line.split())
    # The errors of the command line have it, wherever typer keeps their class.
    assert hasattr(error.value, "format_message")


def test_commands_are_found_in_every_kind_of_source() -> None:
    assert len(list(find_templates())) >= 8
    assert len(list(find_scripts())) >= 100
    assert len(list(find_mentions())) >= 100
