"""``mainspring version``, ``completion`` and ``help``: information about the command line itself."""

import os
from enum import StrEnum
from typing import Annotated

import typer

import mainspring


def register(application: typer.Typer) -> None:
    application.command("version")(show_version)
    application.command("completion")(print_completion)
    application.command("help")(show_help)


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def show_version() -> None:
    """Show version, commit, Python, time zones and schema.

    Example: mainspring version
    """
    from mainspring.config.versions import describe_versions

    # Print the version on a line of its own at the top: scripts read it.
    typer.echo("\n".join([f"mainspring {mainspring.__version__}", *describe_versions()]))


def print_completion(
    shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.", metavar="SHELL", show_default=False)],
) -> None:
    """Print the script that completes commands, options and profiles in a shell.

    Examples:

    mainspring completion bash > ~/.local/share/bash-completion/completions/mainspring

    mainspring completion zsh > ~/.zfunc/_mainspring

    mainspring completion fish > ~/.config/fish/completions/mainspring.fish
    """
    from mainspring.cli.main import build_application

    os.environ["_MAINSPRING_COMPLETE"] = f"source_{shell}"
    build_application("completion")(prog_name="mainspring")


def show_help(
    command: Annotated[
        list[str] | None, typer.Argument(help="A command, such as jobs submit.", metavar="[COMMAND…]")
    ] = None,
) -> None:
    """Show the commands, or the arguments and options of one command.

    Examples:

    mainspring help

    mainspring help jobs submit
    """
    from mainspring.cli.main import build_command

    words = command or []
    build_command(words[0] if words else "")([*words, "--help"], standalone_mode=False)
