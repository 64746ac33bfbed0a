"""The help of the command line: commands by theme, and plain words for the types of options."""

import re
from pathlib import Path
from typing import Any

#: The commands by theme, in the order of the help.
THEMES = {
    "Run": ("up", "scheduler", "worker", "api"),
    "Jobs": ("jobs", "schedules", "tasks", "workflows", "runs", "dead-letters", "replays", "queues", "calendars"),
    "Operate": ("top", "doctor", "events", "forecast", "usage", "budgets", "alerts", "keys", "tenants", "drill"),
    "Cluster": ("workers", "schedulers", "datacenters", "migrate", "promote", "store"),
    "Data": ("plan", "apply", "convert", "backup", "restore", "archive", "move"),
    "Tools": ("cron", "capacity", "profiles", "bench", "version", "completion", "help"),
}
_LINE_BREAK = re.compile(r"(?<!\n)\n(?!\n)")
HELP_OPTIONS = ["-h", "--help"]
_TYPES = {str: "TEXT", list[str]: "TEXT", int: "NUMBER", float: "NUMBER", Path: "PATH"}
#: What the value of a text option is, by the name of the option.
_VALUES = {
    **dict.fromkeys(("at", "since", "until", "start", "end", "from", "to"), "TIME"),
    **dict.fromkeys(("every", "delay", "timeout", "deadline", "start_within", "jitter", "lease", "grace"), "DURATION"),
    "cron": "EXPRESSION",
    "tz": "ZONE",
    "store": "ADDRESS",
    "url": "URL",
}


def arrange(root: Any) -> None:
    """Sort the commands below ``root`` by theme, and name the types of their options."""
    order = [name for names in THEMES.values() for name in names]
    root.commands = {name: root.commands[name] for name in order if name in root.commands}
    for theme, names in THEMES.items():
        for name in names:
            if name in root.commands:
                root.commands[name].rich_help_panel = theme
    _name_types(root)
    _join_lines(root)


def _join_lines(command: Any) -> None:
    """Let the terminal wrap each paragraph: the line breaks of a docstring are not its own."""
    if command.help:
        command.help = _LINE_BREAK.sub(" ", command.help)
    for inner in getattr(command, "commands", {}).values():
        _join_lines(inner)


def _name_types(command: Any) -> None:
    help_option = command.get_help_option(command.context_class(command, help_option_names=HELP_OPTIONS))
    for parameter in (*command.params, *([help_option] if help_option else [])):
        if parameter.param_type_name == "argument":
            # Its name and its description say what it is.
            parameter.display_type_rich = lambda ctx: None
        elif parameter.metavar is None:
            kind = getattr(parameter.type_descriptor, "annotation", None)
            if getattr(parameter, "is_flag", False) or kind is bool:
                # A flag has no value.
                parameter.metavar = ""
            elif kind in _TYPES:
                parameter.metavar = _VALUES.get(parameter.name, "TEXT") if kind is str else _TYPES[kind]
    for inner in getattr(command, "commands", {}).values():
        _name_types(inner)
