"""The task ``shell``: run a file from the scripts folder, or a command that the settings allow.

It never uses a shell: arguments are a list, so nothing in a payload is interpreted as anything but text.
"""

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mainspring.core.model.base.decode_errors import explain_payload_error
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import SECOND, Micros, isoformat
from mainspring.core.model.base.variables import check_allowed, check_names
from mainspring.core.model.runs.names import MAX_NAME
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.worker.builtin.confinement import Confinement
from mainspring.core.worker.builtin.failures import ScriptFailed, for_good
from mainspring.core.worker.builtin.running import BuiltinTask, read_exit_codes, read_limit, run
from mainspring.core.worker.handler import AsyncHandler
from mainspring.core.worker.secrets import NO_SECRETS, Keyring

TASK = "shell"
SCRIPTS_OFF = "start mainspring up or worker with --scripts DIR, or set tasks.scripts"
_PARAMETER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_MOST_ARGUMENTS = 1_000


class ShellCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The payload: ``script`` with ``params``, or ``command``."""

    script: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")
    command: list[str] = []
    #: Variables for the program's environment; ``tasks.env`` lists the allowed ones.
    env: dict[str, str] = {}
    #: None: the time limit of the run's policy.
    timeout: int | float | str | None = None
    #: The meaning of exit codes: ok, fail, later or giveUp.
    exit_codes: dict[str, str] = {}


_decode = msgspec.json.Decoder(ShellCall).decode
_decode_params = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[str]).decode


def read_call(payload: bytes) -> ShellCall:
    """Decode and check a payload, as far as that is possible without looking into the scripts folder."""
    try:
        call = _decode(payload)
    except msgspec.MsgspecError as error:
        raise explain_payload_error(error, ShellCall, payload, 'for example {"script": "cleanup.py"}') from None
    if bool(call.script) == bool(call.command):
        raise Invalid("payload", "needs either a script or a command")
    if call.command and bytes(call.params) != b"{}":
        raise Invalid("payload.params", "are for a script", "a command holds its arguments itself")
    if call.script:
        check_script(call.script)
    check_names("payload.env", call.env)
    for word in [*call.command, *arguments(call.params), *call.env.values()]:
        if "\x00" in word:
            raise Invalid("payload", "an argument cannot hold a zero character")
    read_limit(call.timeout)
    read_exit_codes(call.exit_codes)
    return call


def check_script(name: str) -> None:
    """Check that a name stays inside the folder and refers to no hidden file."""
    parts = name.split("/")
    if not all(parts) or "\\" in name or not name.isprintable() or len(name) > MAX_NAME:
        raise Invalid("payload.script", f"{name[:80]!r} is not a plain name", "relative to the scripts folder")
    if any(part.startswith(".") for part in parts):
        raise Invalid("payload.script", f"{name[:80]!r} holds a part that begins with a dot")


def arguments(params: msgspec.Raw) -> list[str]:
    """Return a list unchanged, or an object as ``--key=value`` words, so that no value can pass for an option."""
    try:
        found = _decode_params(params)
    except msgspec.MsgspecError as error:
        raise Invalid("payload.params", str(error), "an object, or a list of strings") from None
    if len(found) > _MOST_ARGUMENTS:
        raise Invalid("payload.params", f"are {len(found)}", f"at most {_MOST_ARGUMENTS}")
    if isinstance(found, list):
        return found
    words = []
    for key, value in found.items():
        if not _PARAMETER.fullmatch(key):
            raise Invalid("payload.params", f"{key[:40]!r} cannot be a name of an option", "letters, digits, - and _")
        text = bytes(value)
        plain = msgspec.json.decode(text, type=str) if text.startswith(b'"') else text.decode()
        words.append(f"--{key}={plain}")
    return words


def filled(call: ShellCall, fill: Callable[[Any], Any]) -> ShellCall:
    """Fill in secrets where they are allowed: not in the name of the program."""
    return msgspec.structs.replace(
        call,
        params=msgspec.Raw(msgspec.json.encode(fill(msgspec.json.decode(call.params)))),
        command=[*call.command[:1], *fill(call.command[1:])],
        env=fill(call.env),
    )


class Shell:
    """Knows the scripts folder, the allowed commands, and how programs run and stop."""

    def __init__(
        self,
        scripts: Path | None,
        *,
        commands: bool | Mapping[str, Sequence[str]] = False,
        env: Collection[str] = (),
        grace: Micros = 2 * SECOND,
        confinement: Confinement | None = None,
    ) -> None:
        """Set which programs run, and how.

        ``commands``: none, any, or these names, each for a program with its first arguments.
        ``env``: the variables that a payload may set.
        """
        self._scripts = scripts
        self._commands = commands
        self._env = frozenset(env)
        self._grace = grace
        self._confinement = confinement or Confinement()

    @property
    def on(self) -> bool:
        return self._scripts is not None or bool(self._commands)

    def check(self, payload: bytes) -> ShellCall:
        """Raise ``Invalid`` if such a payload cannot be run with these settings."""
        if not self.on:
            raise Invalid("task", "running scripts is off here", SCRIPTS_OFF)
        call = read_call(payload)
        if call.script and self._scripts is None:
            raise Invalid("payload.script", "running scripts is off here", SCRIPTS_OFF)
        if call.command:
            self._argv(call.command)
        check_allowed("payload.env", call.env, self._env)
        return call

    def _argv(self, command: Sequence[str]) -> Sequence[str]:
        if not self._commands:
            raise Invalid(
                "payload.command", "running commands is off here", "name it in tasks.commands, or use a script"
            )
        if isinstance(self._commands, bool):
            return command
        if (known := self._commands.get(command[0])) is None:
            hint = f"tasks.commands has {', '.join(sorted(self._commands))[:200]}"
            raise Invalid("payload.command", f"{command[0][:80]!r} is not allowed here", hint)
        return [*known, *command[1:]]

    def handler(self, keyring: Keyring = NO_SECRETS) -> AsyncHandler:
        async def invoke(held: HeldRun) -> bytes:
            try:
                call = self.check(held.payload)
            except Invalid as error:
                raise for_good(ScriptFailed, str(error)) from None
            if keyring.needed(held.tenant, held.payload):
                call = filled(call, lambda value: keyring.fill(held.tenant, value))
            try:
                task = self._task(call, held)
            except Invalid as error:
                # Another worker, or this one later, may have what is missing here.
                raise ScriptFailed(str(error)) from None
            return await run(task, held)

        return AsyncHandler(TASK, invoke, harmless=True)

    def _task(self, call: ShellCall, held: HeldRun) -> BuiltinTask:
        if call.script:
            argv: Sequence[str] = [*self._find(call.script), *arguments(call.params)]
            name, stdin = call.script, bytes(call.params)
        else:
            argv, name, stdin = self._argv(call.command), call.command[0], b""
        folder = self._scripts.resolve() if self._scripts is not None else Path("/")
        cgroup = f"mainspring-{held.id}-{held.fence}"
        return BuiltinTask(
            kind=ScriptFailed,
            name=name,
            order=self._confinement.order(cgroup, argv, {**build_environment(held), **call.env}, folder),
            stdin=stdin,
            limit=read_limit(call.timeout),
            grace=self._grace,
            codes=read_exit_codes(call.exit_codes),
            memory=self._confinement.limits.memory,
            memory_counted=self._confinement.counts_memory,
        )

    def _find(self, name: str) -> list[str]:
        """Return the command for a script, by its real path, so that the checked file is the one that runs."""
        assert self._scripts is not None
        folder = self._scripts.resolve()
        try:
            path = (folder / name).resolve(strict=True)
        except (OSError, RuntimeError):
            raise Invalid("payload.script", f"there is no {name!r} in the scripts folder") from None
        if not path.is_relative_to(folder):
            raise Invalid("payload.script", f"{name!r} leads out of the scripts folder")
        if not path.is_file():
            raise Invalid("payload.script", f"{name!r} is not a file")
        if os.access(path, os.X_OK):
            return [str(path)]
        if path.suffix == ".py":
            # Isolated: neither variables nor the user's site-packages nor neighboring files change what it imports.
            return [sys.executable, "-I", str(path)]
        if path.suffix == ".sh":
            return ["/bin/sh", str(path)]
        raise Invalid("payload.script", f"{name!r} is not executable", "or end it with .py or .sh")


def build_environment(held: HeldRun) -> dict[str, str]:
    """Return the environment of a program, built from nothing: the worker's own holds the store's password."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "MAINSPRING_RUN_ID": held.id,
        "MAINSPRING_ATTEMPT": str(held.attempt),
        "MAINSPRING_FENCE": str(held.fence),
        "MAINSPRING_JOB_ID": held.job_id or "",
        "MAINSPRING_TICK": "" if held.scheduled_at is None else isoformat(held.scheduled_at),
        "MAINSPRING_TENANT": held.tenant,
    }
