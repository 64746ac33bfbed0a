"""Converter for crontab(5): of a user, or of the system with a user in each line."""

import re

from mainspring.features.schedules.commands.converters.commands import (
    COMMANDS_NOTE,
    RETRIES_NOTE,
    TIMEOUT_NOTE,
    build_payload,
    guess_program,
)
from mainspring.features.schedules.commands.converters.conversion import Conversion

_VARIABLE = re.compile(r"""^\s*(?:"([^"]+)"|'([^']+)'|([A-Za-z_][A-Za-z0-9_]*))\s*=\s*(.*?)\s*$""")
_RANDOM = re.compile(r"(\d*)~(\d*)")
_BOUNDS = ((0, 59), (0, 23), (1, 28), (1, 12), (0, 6))
#: Words that only FreeBSD knows.
_SHORTHANDS = {"@every_minute": "* * * * *"}
_INPUT_END = "END_OF_INPUT"


def convert(text: str, *, system: bool, timezone: str | None, task: str | None) -> Conversion:
    found = Conversion()
    environment: dict[str, str] = {}
    zone = timezone
    mailed: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        where = f"line {number}"
        variable = _VARIABLE.match(line)
        if variable is not None:
            name = next(filter(None, variable.groups()[:3]))
            value = variable.group(4)
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            if name == "CRON_TZ":
                zone = value
            elif name == "MAILTO":
                mailed |= {value or "nobody"}
            elif name != "MAILFROM":
                environment[name] = value
            continue
        _convert_line(found, where, stripped, dict(environment), zone or "UTC", system=system, task=task)
        if zone is None:
            found.note("times without CRON_TZ are read as UTC; cron uses the zone of its machine: set it with --tz")
    if found.translated:
        if task is None:
            found.note(COMMANDS_NOTE)
        found.note(RETRIES_NOTE)
        found.note(TIMEOUT_NOTE)
        if mailed != {"nobody"}:
            to = ", ".join(sorted(mailed - {"nobody"})) or "the owner"
            found.note(f"output is not mailed to {to}: it becomes the run's result or error")
    return found


def _convert_line(
    found: Conversion,
    where: str,
    line: str,
    environment: dict[str, str],
    zone: str,
    *,
    system: bool,
    task: str | None,
) -> None:
    # FreeBSD's cron and cronie accept a leading "-" as an option. It does not change when the command runs.
    line = line.removeprefix("-")
    count = (1 if line.startswith("@") else 5) + system
    words = line.split(None, count)
    if len(words) <= count:
        found.refuse(where, line[:80], "has no command" + (" after a user" if system else ""))
        return
    *fields, command = words
    warnings = []
    user = fields.pop() if system else ""
    expression = " ".join(fields)
    if expression.lower() == "@reboot":
        found.refuse(where, command[:80], "@reboot is not a time: submit a job when the machine starts")
        return
    expression = _SHORTHANDS.get(expression.lower(), expression)
    if "~" in expression and len(fields) == len(_BOUNDS):
        expression = _convert_random(fields)
        warnings.append("a random time (~) becomes a fixed time for the job (H)")
    shell = environment.pop("SHELL", "/bin/sh")
    if "TZ" in environment:
        warnings.append("TZ is set for the command only, as in cron; the schedule's zone is CRON_TZ or --tz")
    script, given = _split_input(command)
    fields_of_job: dict[str, object] = {"name": guess_program(script)}
    if task is None:
        if given is not None:
            script = f"{{ {script}\n}} <<'{_INPUT_END}'\n{given}\n{_INPUT_END}\n"
        fields_of_job |= {"task": "shell", "payload": build_payload([shell, "-c", script], environment)}
    else:
        payload: dict[str, object] = {"command": script}
        if given is not None:
            payload["input"] = given
        if environment:
            payload["environment"] = environment
        fields_of_job |= {"task": task, "payload": payload}
    fields_of_job |= {"cronExpression": expression, "timezone": zone, "maxRetries": 0, "catchUp": "none"}
    if user:
        fields_of_job["owner"] = user
        warnings.append(f"ran as {user}; runs as the worker's user, and {user} is only its owner label")
    found.add(where, fields_of_job, warnings)


def _split_input(command: str) -> tuple[str, str | None]:
    """Split a command at the first unescaped %. The rest is its input, where each % is a line break."""
    parts = re.split(r"(?<!\\)%", command)
    script, *lines = [part.replace("\\%", "%") for part in parts]
    return script.rstrip() if lines else script, "\n".join(lines) if lines else None


def _convert_random(fields: list[str]) -> str:
    def hashed(field: str, low: int, high: int) -> str:
        return _RANDOM.sub(lambda span: f"H({span[1] or low}-{span[2] or high})", field)

    return " ".join(hashed(field, *bounds) for field, bounds in zip(fields, _BOUNDS, strict=True))
