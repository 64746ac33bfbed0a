"""Generates the reference page of all commands and options: ``python -m mainspring.cli.reference``."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from mainspring.cli import exits

_HEAD = """\
# The command line

Every command and option, as the code has them; `make reference` writes this page. How to use them:
[the command line](../guides/command-line.md).

In a clone `mainspring` is `.venv/bin/mainspring`; `. .venv/bin/activate` puts it on the path.
"""
#: Explained once, instead of with every command that has them.
_SHARED = ("--profile", "--url", "--key", "--store", "--config", "--tenant", "--json", "--quiet", "--utc", "--watch")
_SHARED_INTRO = """\
Commands that read or change the installation have these options. They are marked with *where*. Only commands named
`list` or `show` have `--watch`.
"""
#: Only commands that list or show have it.
_SOME = ("--watch",)


def page() -> str:
    from mainspring.cli.main import build_command

    root = build_command()
    commands = list(_commands(root, ()))
    shared = next(command for path, command in commands if path == ("jobs", "list"))
    parts = [_HEAD, "## Exit codes\n", "| code | means |\n|---|---|"]
    parts += [f"| {code} | {words} |" for code, words in exits.WORDS.items()]
    parts += [
        "\n## Common options\n",
        _SHARED_INTRO,
        _table(option for option in _options(shared) if option.opts[0] in _SHARED),
    ]
    for path, command in commands:
        options = list(_options(command))
        names = {option.opts[0] for option in options}
        speaks = set(_SHARED).difference(_SOME) <= names
        own = [option for option in options if not (speaks and option.opts[0] in _SHARED)]
        arguments = [argument for argument in command.params if argument.param_type_name == "argument"]
        usage = " ".join(["mainspring", *path, *(_metavar(argument) for argument in arguments)])
        parts.append(f"\n## {' '.join(path)}\n\n`{usage}`{' · *where*' if speaks else ''}\n")
        parts.append(_prose(command.help or ""))
        if arguments or own:
            parts.append("\n" + _table([*arguments, *own]))
    return "\n".join(parts) + "\n"


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            yield from _commands(inner, (*path, name))
        elif not inner.hidden:
            yield (*path, name), inner


def _options(command: Any) -> Iterator[Any]:
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden and option.name != "help":
            yield option


def _table(parameters: Any) -> str:
    rows = ["| option | |", "|---|---|"]
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            rows.append(f"| `{_metavar(parameter)}` | {_cell(parameter.help or '')} |")
            continue
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        default = parameter.default
        shown = getattr(parameter, "show_default", True) and default not in (None, False, (), [], "")
        words = _cell(parameter.help or "")
        if parameter.required:
            words += " Required."
        elif shown:
            words += f" Default: `{getattr(default, 'value', default)}`."
        rows.append(f"| {names} | {words} |")
    return "\n".join(rows)


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _prose(text: str) -> str:
    """Return the text of the help, with its examples as a code block."""
    paragraphs = [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]
    lines: list[str] = []
    examples: list[str] = []
    for paragraph in paragraphs:
        single = paragraph.removeprefix("Example: ")
        if paragraph == "Examples:":
            continue
        if single != paragraph or (examples or "Examples:" in paragraphs[: paragraphs.index(paragraph)]):
            examples.append(single)
        else:
            lines.append(paragraph)
    block = "\n\n```\n" + "\n".join(examples) + "\n```" if examples else ""
    return "\n\n".join(lines) + block


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
