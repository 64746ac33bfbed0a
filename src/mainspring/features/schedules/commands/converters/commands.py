"""Converts programs, their arguments and variables to payloads of the built-in task ``shell``."""

import re
from collections.abc import Mapping, Sequence

COMMANDS_NOTE = (
    "commands run as the worker's user, in its scripts folder or in /; workers need tasks.commands = true "
    "in their settings"
)
TIMEOUT_NOTE = "a run may take 1h unless its entry says otherwise by timeout"
RETRIES_NOTE = "nothing is retried (maxRetries: 0), as before; give an entry more where that is safe"

#: Words before a program, and programs that are not the purpose of a schedule.
_PREFIXES = frozenset({"sudo", "nice", "ionice", "chronic", "env", "time", "exec", "nohup"})
_ASIDES = frozenset({"cd", "test", "[", "export", "source", ".", "sleep", "set", "umask"})
_BETWEEN = re.compile(r"&&|\|\||;|\|")


def payload_of(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, object]:
    """Build the payload. No shell interprets the words; variables are set by ``env``."""
    words = [f"{name}={value}" for name, value in environment.items()]
    return {"command": ["/usr/bin/env", *words, *command] if words else list(command)}


def name_of(command: str) -> str:
    """Return the main program of a command line, as a best guess."""
    for part in _BETWEEN.split(command):
        words = [word.strip("'\"(){}") for word in part.split()]
        programs = (word.rpartition("/")[2] for word in words if "=" not in word and not word.startswith("-"))
        program = next((program for program in programs if program and program not in _PREFIXES), "")
        if program and program not in _ASIDES and program.isprintable():
            return program[:100]
    return "command"
