"""The task ``shell``: run a file from the scripts folder, or, where that is allowed, any command.

Never through a shell: arguments are a list, so nothing in a payload is read as anything but text.
"""

import asyncio
import errno
import os
import re
import signal
import sys
from pathlib import Path

import msgspec

from mainspring.domain.errors import Invalid
from mainspring.domain.instant import DAY, MILLISECOND, SECOND, Micros, format_duration, isoformat, parse_duration
from mainspring.domain.run import MAX_NAME, MAX_RESULT, HeldRun
from mainspring.worker.builtin.process import Program
from mainspring.worker.builtin.text import readable, tail
from mainspring.worker.handler import AsyncHandler
from mainspring.worker.trace import Told

TASK = "shell"
#: What is kept of each of stdout and stderr: the end.
KEPT = 16 * 1024
_SHOWN = 4 * 1024
_PARAMETER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_MOST_ARGUMENTS = 1_000


class ScriptFailed(Told):
    """It could not be started, took too long, or ended with another exit code than 0."""


class ShellCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The payload: ``script`` with ``params``, or ``command``."""

    script: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")
    command: list[str] = []
    #: None: as long as the run's policy says.
    timeout: int | float | str | None = None

    def limit(self) -> Micros | None:
        if self.timeout is None:
            return None
        limit = parse_duration(self.timeout, "timeout")
        if not MILLISECOND <= limit <= 30 * DAY:
            raise Invalid("payload.timeout", "is out of range", "1ms to 30d")
        return limit


_decode = msgspec.json.Decoder(ShellCall).decode
_decode_params = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[str]).decode


def read_call(payload: bytes) -> ShellCall:
    """A payload, checked as far as that goes without looking into the folder."""
    try:
        call = _decode(payload)
    except msgspec.MsgspecError as error:
        raise Invalid("payload", str(error), 'for example {"script": "cleanup.py"}') from None
    if bool(call.script) == bool(call.command):
        raise Invalid("payload", "needs either a script or a command")
    if call.command and bytes(call.params) != b"{}":
        raise Invalid("payload.params", "are for a script", "a command holds its arguments itself")
    if call.script:
        check_script(call.script)
    for word in [*call.command, *arguments(call.params)]:
        if "\x00" in word:
            raise Invalid("payload", "an argument cannot hold a zero character")
    call.limit()
    return call


def check_script(name: str) -> None:
    """A name inside the folder, and nothing that leads out of it or to what is hidden there."""
    parts = name.split("/")
    if not all(parts) or "\\" in name or not name.isprintable() or len(name) > MAX_NAME:
        raise Invalid("payload.script", f"{name[:80]!r} is not a plain name", "relative to the scripts folder")
    if any(part.startswith(".") for part in parts):
        raise Invalid("payload.script", f"{name[:80]!r} holds a part that begins with a dot")


def arguments(params: msgspec.Raw) -> list[str]:
    """A list as it stands. An object as ``--key=value``: in one word, so that no value can pass for an option."""
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


class Shell:
    """Where scripts are, whether commands may be run, and how long a stopped one may take to clean up."""

    def __init__(self, scripts: Path | None, *, commands: bool = False, grace: Micros = 2 * SECOND) -> None:
        self._scripts = scripts
        self._commands = commands
        self._grace = grace

    @property
    def on(self) -> bool:
        return self._scripts is not None or self._commands

    def check(self, payload: bytes) -> ShellCall:
        """Raises ``Invalid`` if such a payload cannot be run with these settings."""
        if not self.on:
            raise Invalid("task", "running scripts is off here", "set tasks.scripts to a folder with your scripts")
        call = read_call(payload)
        if call.script and self._scripts is None:
            raise Invalid("payload.script", "running scripts is off here", "set tasks.scripts to a folder")
        if call.command and not self._commands:
            raise Invalid("payload.command", "running commands is off here", "tasks.commands = true, or use a script")
        return call

    def handler(self) -> AsyncHandler:
        return AsyncHandler(TASK, self._invoke, harmless=True)

    async def _invoke(self, held: HeldRun) -> bytes:
        try:
            call = self.check(held.payload)
            name, program = self._start(call, held)
        except Invalid as error:
            raise ScriptFailed(str(error)) from None
        limit = call.limit()
        try:
            await asyncio.wait([program.ended], timeout=None if limit is None else limit / SECOND)
            in_time = program.ended.done()
            if not in_time:
                await program.stop(self._grace / SECOND)
        except asyncio.CancelledError:
            await program.stop(self._grace / SECOND)
            raise
        finally:
            stdout, stderr = readable(program.stdout.close()), readable(program.stderr.close())
        code = program.ended.result()
        if code == 0 and in_time:
            return _result(stdout, stderr, cut=program.stdout.cut or program.stderr.cut)
        if limit is not None and not in_time:
            why = f"{name} may take {format_duration(limit)} and took longer"
        else:
            why = f"{name} ended with {_exit(code)}"
        shown = [stdout[-_SHOWN:].rstrip(), stderr[-_SHOWN:].rstrip(), why]
        raise ScriptFailed("\n".join(filter(None, shown)))

    def _start(self, call: ShellCall, held: HeldRun) -> tuple[str, Program]:
        if call.script:
            argv = [*self._find(call.script), *arguments(call.params)]
            name, stdin = call.script, bytes(call.params)
        else:
            argv, name, stdin = call.command, call.command[0], b""
        try:
            program = Program(
                argv,
                stdin=stdin,
                environment=_environment(held),
                folder=self._scripts.resolve() if self._scripts is not None else Path("/"),
                keep=KEPT,
            )
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                raise Invalid("payload.script", f"{name} is executable but has no #! line") from None
            raise Invalid("payload", f"{name} cannot be started: {error.strerror}") from None
        return name, program

    def _find(self, name: str) -> list[str]:
        """How to run a script, by its real path: what was checked is what is run."""
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
            return [sys.executable, str(path)]
        if path.suffix == ".sh":
            return ["/bin/sh", str(path)]
        raise Invalid("payload.script", f"{name!r} is not executable", "or end it with .py or .sh")


def _environment(held: HeldRun) -> dict[str, str]:
    """Nothing of the worker's own: that holds the store's password."""
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


def _result(stdout: str, stderr: str, *, cut: bool) -> bytes:
    room = MAX_RESULT // 2 - 100
    found: dict[str, object] = {"exitCode": 0, "stdout": tail(stdout, room), "stderr": tail(stderr, room)}
    if cut or found["stdout"] != stdout or found["stderr"] != stderr:
        found["truncated"] = True
    return msgspec.json.encode(found)


def _exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
