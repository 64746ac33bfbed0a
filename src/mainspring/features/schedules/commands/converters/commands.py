"""Converts programs, their arguments and variables to payloads of the built-in task ``shell``."""

import re
from collections.abc import Mapping, Sequence

COMMANDS_NOTE = (
    "commands run as the worker's user, in its scripts folder or in /; workers need tasks.commands = true "
    "in their settings"
)
TIMEOUT_NOTE = "the timeout of a run is 1h unless its entry sets another"
RETRIES_NOTE = "nothing is retried (maxRetries: 0), as before; raise it where retries are safe"

#: Words before a program, and programs that are not the purpose of a schedule.
_PREFIXES = frozenset({"sudo", "nice", "ionice", "chronic", "env", "time", "exec", "nohup"})
_IGNORED_PROGRAMS = frozenset({"cd", "test", "[", "export", "source", ".", "sleep", "set", "umask"})
_SEPARATORS = re.compile(r"&&|\|\||;|\|")


def build_payload(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, object]:
    """Build the payload. No shell interprets the words; variables are set by ``env``."""
    words = [f"{name}={value}" for name, value in environment.items()]
    return {"command": ["/usr/bin/env", *words, *command] if words else list(command)}


def guess_program(command: str) -> str:
    """Return the main program of a command line, as a best guess."""
    for part in _SEPARATORS.split(command):
        words = [word.strip("'\"(){}") for word in part.split()]
        programs = (word.rpartition("/")[2] for word in words if "=" not in word and not word.startswith("-"))
        program = next((program for program in programs if program and program not in _PREFIXES), "")
        if program and program not in _IGNORED_PROGRAMS and program.isprintable():
            return program[:100]
    return "command"
