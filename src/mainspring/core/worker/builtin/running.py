"""Runs a program for an attempt: captures its output as the run's log, and turns its exit into the outcome."""

import asyncio
import errno
import os
import re
import signal
from collections.abc import Mapping
from typing import Literal, TypeAlias, cast, get_args

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, MILLISECOND, MINUTE, SECOND, Micros, format_duration, parse_duration
from mainspring.core.model.runs.names import MAX_RESULT
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.builtin.failures import OutOfMemory, for_good, for_now
from mainspring.core.worker.builtin.process import Program, ProgramResult, ProgramSpec
from mainspring.core.worker.builtin.text import readable, tail
from mainspring.core.worker.reporting.attempt_reporter import current
from mainspring.core.worker.reporting.trace import ReportedError

#: How many bytes of each of stdout and stderr are kept, from the end.
KEPT = 16 * 1024
_SHOWN = 4 * 1024
_LONGEST_NOTE = 1_000
_PAUSE: Micros = MINUTE
_LONGEST_PAUSE: Micros = 30 * DAY

Meaning: TypeAlias = Literal["ok", "fail", "later", "giveUp"]
#: As in sysexits.h: 75 is a temporary failure, 65 is bad data.
EXIT_CODES: Mapping[int, Meaning] = {0: "ok", 65: "giveUp", 75: "later"}

_PROGRESS = re.compile(r"::progress ([0-9]{1,15}(?:\.[0-9]{1,9})?)(?:/([0-9]{1,15}(?:\.[0-9]{1,9})?))?(?: (.*))?")
_RETRY_AFTER = re.compile(r"::retry-after (\S{1,40})")
_NO_MEMORY = re.compile(r"MemoryError|[Cc]annot allocate memory|bad_alloc|[Oo]ut of memory|ENOMEM")


def read_exit_codes(codes: Mapping[str, str]) -> dict[int, Meaning]:
    """Return the meaning of exit codes: the defaults, overridden by ``codes``."""
    found = dict(EXIT_CODES)
    for code, meaning in codes.items():
        if not re.fullmatch("[0-9]{1,3}", code) or int(code) > 255:
            raise Invalid("payload.exitCodes", f"{code[:20]!r} is no exit code", "0 to 255")
        if meaning not in get_args(Meaning):
            raise Invalid("payload.exitCodes", f"{meaning[:20]!r} is no meaning", "ok, fail, later or giveUp")
        found[int(code)] = cast(Meaning, meaning)
    return found


def read_limit(timeout: float | str | None) -> Micros | None:
    if timeout is None:
        return None
    limit = parse_duration(timeout, "timeout")
    if not MILLISECOND <= limit <= 30 * DAY:
        raise Invalid("payload.timeout", "is out of range", "1ms to 30d")
    return limit


class BuiltinTask(msgspec.Struct, frozen=True, kw_only=True):
    """One program of one attempt."""

    #: The class of its failures.
    kind: type[ReportedError]
    #: Its name in messages.
    name: str
    order: ProgramSpec
    stdin: bytes
    limit: Micros | None
    grace: Micros
    codes: Mapping[int, Meaning]
    #: Its memory limit in bytes; 0 for none.
    memory: int = 0
    #: The kernel enforces the memory limit, so the output need not be searched for the reason.
    memory_counted: bool = False


class _Listener:
    """Processes every line of output."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._reporter = current.get()
        self.pause: Micros = _PAUSE

    def add(self, data: bytes, cut: bool) -> None:
        line = readable(data).rstrip("\r")
        if cut:
            # Half a secret at the cut would not be found.
            masked = masks.text(self._tenant, line)
            line = f"{masked[: max(0, len(masked) - masks.longest(self._tenant))]} … (cut)"
        if line.startswith("::") and self._obey(line):
            return
        if self._reporter is not None:
            self._reporter.print(line)

    def _obey(self, line: str) -> bool:
        if (found := _PROGRESS.fullmatch(line)) is not None:
            done, total, note = found.groups()
            if self._reporter is not None and (total is None or float(total) > 0):
                note = masks.text(self._tenant, note or "")[:_LONGEST_NOTE]
                self._reporter.progress(float(done), None if total is None else float(total), note)
            return True
        if (found := _RETRY_AFTER.fullmatch(line)) is not None:
            try:
                self.pause = min(parse_duration(found[1], "retry-after"), _LONGEST_PAUSE)
            except Invalid:
                return False
            return True
        return False


async def run(task: BuiltinTask, held: HeldRun) -> bytes:
    """Return the result, or raise a failure that says whether it is retried. Returns only when no process is left."""
    listener = _Listener(held.tenant)
    longest = masks.longest(held.tenant)
    try:
        program = Program(task.order, stdin=task.stdin, keep=KEPT + longest, on_line=listener.add)
    except OSError as error:
        raise task.kind(f"{task.name} cannot be started: {error.strerror}") from None
    try:
        await asyncio.wait([program.ended], timeout=None if task.limit is None else task.limit / SECOND)
        in_time = program.ended.done()
        if not in_time:
            await program.stop(task.grace / SECOND)
    except asyncio.CancelledError:
        await program.stop(task.grace / SECOND)
        raise
    finally:
        if program.ended.done() and (reporter := current.get()) is not None:
            reporter.used_cpu(program.ended.result().cpu)
        stdout, stderr = (
            _kept(output.close(), held.tenant, longest if output.cut else 0)
            for output in (program.stdout, program.stderr)
        )
    ended = program.ended.result()
    if in_time and not ended.errno and not ended.too_many_processes and task.codes.get(ended.code) == "ok":
        return _result(ended.code, stdout, stderr, cut=program.stdout.cut or program.stderr.cut)
    raise _failure(task, ended, stdout, stderr, in_time=in_time, pause=listener.pause)


def _kept(data: bytes, tenant: str, doubtful: int) -> str:
    """Mask first and cut after that; the part that was cut before may contain half a secret."""
    return masks.text(tenant, readable(data))[doubtful:][-KEPT:]


def _failure(
    task: BuiltinTask, ended: ProgramResult, stdout: str, stderr: str, *, in_time: bool, pause: Micros
) -> ReportedError:
    def text(why: str) -> str:
        return "\n".join(filter(None, [stdout[-_SHOWN:].rstrip(), stderr[-_SHOWN:].rstrip(), why]))

    if ended.errno:
        if ended.errno == errno.ENOEXEC:
            return for_good(task.kind, f"payload.script: {task.name} is executable but has no #! line")
        return task.kind(f"payload: {task.name} cannot be started: {os.strerror(ended.errno)}")
    if ended.too_many_processes:
        return task.kind(text(f"{task.name} had more than {task.order.processes} processes at a time, and was killed"))
    if task.limit is not None and not in_time:
        return task.kind(text(f"{task.name} may take {format_duration(task.limit)} and took longer"))
    words_for_it = task.memory > 0 and not task.memory_counted and _NO_MEMORY.search(stderr) is not None
    if ended.out_of_memory or words_for_it:
        allowed = f"{task.memory} bytes are allowed" if task.memory else "the machine had no more"
        return OutOfMemory(text(f"{task.name} ran out of memory: {allowed}"))
    why = f"{task.name} ended with {exit_words(ended.code)}"
    match task.codes.get(ended.code, "fail"):
        case "giveUp":
            return for_good(task.kind, text(why))
        case "later":
            return for_now(task.kind, text(why), pause)
        case _:
            return task.kind(text(why))


def _result(code: int, stdout: str, stderr: str, *, cut: bool) -> bytes:
    room = MAX_RESULT // 2 - 100
    found: dict[str, object] = {"exitCode": code, "stdout": tail(stdout, room), "stderr": tail(stderr, room)}
    if cut or found["stdout"] != stdout or found["stderr"] != stderr:
        found["truncated"] = True
    return msgspec.json.encode(found)


def exit_words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGXCPU:
        return "signal SIGXCPU: it has used up its time on a processor"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
