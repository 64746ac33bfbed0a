"""The worker's handle of one child process."""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Protocol

import msgspec

from mainspring.core.model.base.instant import Micros
from mainspring.core.model.runs.cause import Cause
from mainspring.core.ports.clock import Clock
from mainspring.core.runtime import log_lines
from mainspring.core.worker.attempt import Attempt, Stop
from mainspring.core.worker.executors.channel import Channel
from mainspring.core.worker.executors.frames import (
    AttemptEnded,
    Begin,
    Finish,
    FromChild,
    Interrupt,
    Ready,
    Reported,
    Start,
    StartRefused,
)
from mainspring.core.worker.executors.liveness import LivenessFile
from mainspring.core.worker.executors.marks import kill_marked, marked

_PROGRAM = "mainspring.core.worker.executors.child"
#: Set in the environment of the child, and so of all processes it starts.
_MARK = "MAINSPRING_CHILD"
#: How long a child may live after its connection was closed.
_EXIT_SECONDS = 5


class Owner(Protocol):
    """Receives the events of a child."""

    def started(self) -> None: ...

    def begin(self, attempt: Attempt) -> None: ...

    def ended(
        self, child: "ChildProcess", attempt: Attempt, result: bytes | None, error: str | None, cause: Cause
    ) -> None: ...

    def exited(self, child: "ChildProcess", code: int) -> None: ...


class ChildProgram(msgspec.Struct, frozen=True, kw_only=True):
    """What a child process loads, and what it needs from its worker."""

    #: Where it finds the handlers, as ``module:attribute``.
    source: str
    #: The argument of the application's ``adopt``; if empty, it is not called.
    adopts: bytes
    liveness: LivenessFile
    #: For how many seconds the liveness file may stay unchanged before the child ends itself.
    silence: int
    captures: bool
    tracing: tuple[str, float, str, str] | None = None


class ChildProcess:
    """A child process that starts on construction.

    Accepts attempts at once, and begins them when the application is loaded.
    """

    def __init__(
        self,
        program: ChildProgram,
        *,
        measures_memory: bool,
        alone: bool,
        clock: Clock,
        owner: Owner,
    ) -> None:
        self._owner = owner
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.started_at = clock.monotonic()
        #: It has loaded the application.
        self.ready = False
        #: It gets no new work, and exits when its current work is done.
        self.retiring = False
        #: The processes it started were asked to end; it is killed next.
        self.asked = False
        #: We ended it by force.
        self.condemned = False
        #: Why it cannot run anything.
        self.refusal: str | None = None
        #: It is slow to start: it gets no new work until it is ready.
        self.slow = False
        #: Attempts that have returned while processes they started are running; reported when those are gone.
        self.withheld: list[tuple[Attempt, bytes | None, str | None, Cause]] = []
        self.finishing_since: Micros | None = None
        #: The total number of attempts it was given, and its last reported memory use.
        self.given = 0
        self.memory = 0
        self._last_key = 0
        self._keys: dict[Attempt, int] = {}
        self._running: dict[int, Attempt] = {}
        self._backlog: dict[Attempt, None] = {}
        self._interrupted: set[Attempt] = set()
        self._reaping = threading.Lock()
        self._dead = False

        ours, theirs = socket.socketpair()
        read_end, self._write_end = os.pipe()
        passed = (theirs.fileno(), read_end, program.liveness.fileno())
        mark = secrets.token_hex(16)
        self._marks = [f"{_MARK}={mark}\0".encode()]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, program.source, str(passed[0]), str(passed[1]), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                env={**os.environ, _MARK: mark},
                pass_fds=passed,
                # A separate group: processes started by handlers are killed with it, and Ctrl-C reaches only the
                # worker.
                start_new_session=True,
            )
        except OSError:
            ours.close()
            os.close(self._write_end)
            raise
        finally:
            theirs.close()
            os.close(read_end)
        self.pid = self._process.pid
        self._channel = Channel(ours, self._receive, self._hung_up)
        self._channel.send(
            Begin(
                list(sys.path),
                measures_memory,
                program.liveness.fileno(),
                program.silence,
                program.adopts,
                program.captures,
                alone,
                program.tracing,
                log_lines.chosen,
            )
        )
        threading.Thread(target=self._await_exit, name=f"mainspring child {self.pid}", daemon=True).start()

    @property
    def accepts(self) -> bool:
        """True if the child takes new work. Not while it interrupts an attempt: it may have to be killed soon."""
        return not (self.retiring or self.condemned or self.refusal is not None or self._interrupted or self.slow)

    @property
    def load(self) -> int:
        return len(self._running) + len(self._backlog)

    @property
    def hosted(self) -> list[Attempt]:
        """Attempts that have begun here."""
        return list(self._running.values())

    @property
    def backlog(self) -> list[Attempt]:
        """Attempts that wait until it is ready."""
        return list(self._backlog)

    def give(self, attempt: Attempt) -> None:
        self.given += 1
        if self.ready:
            self._begin(attempt)
        else:
            self._backlog[attempt] = None

    def forget(self, attempt: Attempt) -> None:
        """Remove an attempt that has not begun."""
        del self._backlog[attempt]

    def interrupt(self, attempt: Attempt) -> None:
        self._interrupted.add(attempt)
        why = "" if attempt.stop is None else attempt.stop.value
        self._channel.send(Interrupt(self._keys[attempt], attempt.stop is Stop.CANCEL, why))

    def finish(self) -> None:
        """Let it exit by itself."""
        self.retiring = True
        if self.finishing_since is None:
            self.finishing_since = self._clock.monotonic()
            self._channel.send(Finish())

    def refuse(self, error: str) -> None:
        """Record that it will never be ready."""
        self.refusal = error

    def terminate(self) -> None:
        """Ask the processes it started to end.

        A handler that waits for them then continues, and sees that it should stop.
        """
        self.retiring = self.asked = True
        self._signal(signal.SIGTERM)

    def leaves_behind(self) -> bool:
        """Ask remaining processes that were started here to end; returns whether there are any."""
        left = self._offspring()
        _signal_all(left, signal.SIGTERM)
        return bool(left)

    def condemn(self) -> None:
        """Kill it with all processes it has started. Its attempts are handled when it is really dead."""
        self.condemned = True
        self._kill()

    def _begin(self, attempt: Attempt) -> None:
        key = self._last_key = self._last_key + 1
        self._keys[attempt] = key
        self._running[key] = attempt
        self._owner.begin(attempt)
        self._channel.send(Start(key, attempt.held))

    def _receive(self, message: FromChild) -> None:
        match message:
            case Ready():
                self.ready = True
                self.slow = False
                backlog, self._backlog = self._backlog, {}
                for attempt in backlog:
                    self._begin(attempt)
                self._owner.started()
            case StartRefused(error=error):
                self.refuse(error)
            case Reported(key=key, batch=batch):
                reporting = self._running.get(key)
                if reporting is not None and reporting.reporter is not None:
                    reporting.reporter.add_batch(batch)
            case AttemptEnded(
                key=key, result=result, error=error, memory=memory, cause=cause, spent=spent, broken=broken
            ):
                attempt = self._running.pop(key)
                if attempt.reporter is not None and spent is not None:
                    attempt.reporter.was_spent(spent)
                del self._keys[attempt]
                self._interrupted.discard(attempt)
                self.memory = memory
                self.retiring |= broken
                self._owner.ended(self, attempt, result, error, cause)

    def _hung_up(self) -> None:
        # Dead, or about to be: a child with a closed connection is of no use. It has a moment to exit by itself, so
        # that its exit code says why.
        self.retiring = True
        self._loop.call_later(_EXIT_SECONDS, self._kill)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        # While the leader is not reaped, the group id cannot belong to another process.
        with self._reaping, suppress(ProcessLookupError, PermissionError):
            if not self._dead:
                os.killpg(self.pid, number)
        # Processes that have left the group.
        _signal_all([pid for pid in self._offspring() if _find_process_group(pid) != self.pid], number)

    def _offspring(self) -> list[int]:
        return [pid for pid in marked(self._marks) if pid != self.pid]

    def _await_exit(self) -> None:
        """Wait on a separate thread, which works the same on every system and under every event loop."""
        if hasattr(os, "waitid"):
            # Dead but not reaped: its group can now be killed without hitting an unrelated process.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self._kill()
            with self._reaping:
                self._dead = True
            kill_marked(self._marks)
        code = self._process.wait()
        self._dead = True
        with suppress(RuntimeError):  # The loop is closed: there is no receiver left.
            self._loop.call_soon_threadsafe(self._exited, code)

    def _exited(self, code: int) -> None:
        self._channel.read_the_rest()
        os.close(self._write_end)
        self._owner.exited(self, code)


def _signal_all(processes: list[int], number: int) -> None:
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _find_process_group(pid: int) -> int | None:
    with suppress(ProcessLookupError, PermissionError):
        return os.getpgid(pid)
    return None
