"""A child process: loads the application and runs sync handlers on its threads, on request of the worker.

Started by the worker as ``python -m mainspring.core.worker.executors.child module:attribute …``. It is never forked,
because a fork copies locks and database connections in an arbitrary state.
"""

import importlib
import os
import socket
import sys
import threading
from collections.abc import Mapping
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, cast

from mainspring.core.model.runs.cause import FINAL
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.runtime import log_lines
from mainspring.core.runtime.django import set_up_django
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.executors.cpu import read_process, read_thread
from mainspring.core.worker.executors.frames import (
    AttemptEnded,
    Begin,
    Finish,
    Frames,
    FromChild,
    Interrupt,
    Ready,
    Reported,
    Start,
    StartRefused,
    decode_to_child,
    encode,
)
from mainspring.core.worker.executors.host import HostLoop
from mainspring.core.worker.executors.interruption import Call
from mainspring.core.worker.executors.liveness import (
    exit_cut_off,
    exit_when_stale,
    exit_with_worker,
    identify_file,
    kill_process_group,
)
from mainspring.core.worker.executors.memory import resident_bytes
from mainspring.core.worker.executors.results import result_problem
from mainspring.core.worker.handler import Adopter, AsyncHandler, Handler, HandlerSource
from mainspring.core.worker.reporting.attempt_reporter import AttemptReporter, current
from mainspring.core.worker.reporting.capture import capture
from mainspring.core.worker.reporting.trace import describe
from mainspring.core.worker.reporting.tracing import standing_in

if TYPE_CHECKING:
    from mainspring.core.runtime.tracing.spans import Tracing

_CHUNK = 256 * 1024
#: Reports within this many seconds are sent together.
_GATHER = 0.1


class _Entry(NamedTuple):
    start: Start
    call: Call
    reporter: AttemptReporter[int]


class Child:
    """Reads frames on the main thread, and calls handlers on as many threads as there are concurrent calls."""

    def __init__(self, line: socket.socket, liveness: int, source: str) -> None:
        self._line = line
        self._source = source
        self._sending = threading.Lock()
        self._waiting: SimpleQueue[_Entry] = SimpleQueue()
        self._calls: dict[int, _Entry] = {}
        self._threads = 0
        self._application: HandlerSource | None = None
        self._handlers: Mapping[str, Handler] = {}
        self._measures_memory = False
        self._cpu = read_thread
        self._tracing: Tracing | None = None
        self.captures = False
        #: The standard descriptors and those that show that the worker lives, and their files once it is loaded.
        self._descriptors = [0, 1, 2, liveness]
        self._files: list[tuple[int, int] | None] = []
        self._line_file = identify_file(line.fileno())
        self._host = HostLoop()
        #: Attempts with unsent reports. Reports taken from one are sent before another thread takes from it.
        self._reporters: SimpleQueue[AttemptReporter[int]] = SimpleQueue()
        self._taking = threading.Lock()

    def serve(self) -> None:
        """Serve until the worker sends ``Finish`` or closes the connection."""
        frames = Frames()
        while data := self._receive():
            for frame in frames.feed(data):
                match decode_to_child(frame):
                    case Begin() as begin:
                        if not self._begin(begin):
                            return
                    case Start() as start:
                        self._start(start)
                    case Interrupt(key=key, cancelled=cancelled, why=why):
                        if (entry := self._calls.get(key)) is not None:
                            entry.start.held.cancel_requested |= cancelled
                            entry.reporter.stop = why
                            entry.call.interrupt()
                    case Finish():
                        self._close()
                        return
        kill_process_group()

    def _receive(self) -> bytes:
        try:
            return self._line.recv(_CHUNK)
        except OSError:
            if identify_file(self._line.fileno()) != self._line_file:
                exit_cut_off()
            raise

    def _begin(self, begin: Begin) -> bool:
        self._measures_memory = begin.measures_memory
        self._cpu = read_process if begin.alone else read_thread
        sys.path[:] = begin.path
        if begin.log is not None:
            log_lines.configure(*begin.log)
        try:
            self._application = load(self._source)
            if begin.adopts and isinstance(self._application, Adopter):
                self._application.adopt(begin.adopts)
            self._handlers = self._application.handlers()
            if begin.tracing is not None:
                # Imported here, so that only processes that trace pay for it.
                from mainspring.core.runtime.tracing.spans import get_tracing

                self._tracing = get_tracing(*begin.tracing)
                self._tracing.lend()
                self._handlers = standing_in(self._handlers, self._tracing)
            self.captures = begin.captures
            if begin.captures or log_lines.shows_output():
                capture.begin()
            self._host.open(self._application)
        except BaseException as error:
            self._send(StartRefused(f"{self._source} could not be loaded in a child process:\n{describe(error)}"))
            return False
        self._descriptors.append(begin.liveness)
        self._files = [identify_file(descriptor) for descriptor in self._descriptors]
        threading.Thread(target=self._keep_reporting, name="mainspring reports", daemon=True).start()
        exit_when_stale(begin.liveness, begin.silence)
        self._send(Ready())
        return True

    def _close(self) -> None:
        try:
            self._host.close()
            if self._tracing is not None:
                self._tracing.flush()
        except BaseException as error:
            sys.stderr.write(f"mainspring: what the application opened could not be closed:\n{describe(error)}\n")

    def _start(self, start: Start) -> None:
        entry = _Entry(start, Call(), AttemptReporter(start.key, self, shows_life=True, tenant=start.held.tenant))
        entry.reporter.held = start.held
        self._calls[start.key] = entry
        # The worker never sends more calls than it has threads for, so a thread is free or may be added.
        if len(self._calls) > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"mainspring {self._threads}", daemon=True).start()
        self._waiting.put(entry)

    def _work(self) -> None:
        while True:
            entry = self._waiting.get()
            start = entry.start
            current.set(entry.reporter)
            before = self._cpu()
            result, error, cause = entry.call.run(partial(self._invoke, start.held))
            entry.reporter.used_cpu(self._cpu() - before)
            current.set(None)
            if result and masks.any:
                result = masks.json(start.held.tenant, result)
            if result and (problem := result_problem(result)) is not None:
                # Checked here, so that a result of a gigabyte is not transferred first.
                result, error, cause = None, problem, FINAL
            memory = resident_bytes() if self._measures_memory else 0
            del self._calls[start.key]
            entry.reporter.close()
            self._send_reports(entry.reporter)
            # Closed, or closed and opened again as another file, into which later runs would print.
            broken = [identify_file(descriptor) for descriptor in self._descriptors] != self._files
            self._send(AttemptEnded(start.key, result, error, memory, cause, entry.reporter.spent(), broken))

    def _invoke(self, held: HeldRun) -> bytes | None:
        handler = self._handlers.get(held.task)
        if handler is None:
            raise LookupError(f"{self._source} has no handler for task {held.task!r} in a child process")
        if isinstance(handler, AsyncHandler):
            # Usually on the worker's event loop, but this one runs alone because workers died of it.
            return self._host.run(handler.invoke(held))
        return handler.invoke(held)

    def wake(self, reporter: AttemptReporter[int]) -> None:
        self._reporters.put(reporter)

    async def flush(self, reporter: AttemptReporter[int]) -> None:
        """Send the reports to the worker."""
        self._send_reports(reporter)

    def _keep_reporting(self) -> None:
        pause = threading.Event()
        while True:
            first = self._reporters.get()
            pause.wait(_GATHER)
            self._send_reports(first)
            for _ in range(self._reporters.qsize()):
                self._send_reports(self._reporters.get())

    def _send_reports(self, reporter: AttemptReporter[int]) -> None:
        with self._taking:
            if reporter.waiting:
                self._send(Reported(reporter.owner, reporter.take()))

    def _send(self, message: FromChild) -> None:
        frame = encode(message)
        with self._sending:
            if identify_file(self._line.fileno()) != self._line_file:
                exit_cut_off()
            try:
                self._line.sendall(frame)
            except OSError:
                kill_process_group()


def load(source: str) -> HandlerSource:
    """Import ``module:attribute``, which must have ``handlers()``."""
    set_up_django()
    module, _, path = source.partition(":")
    found: object = importlib.import_module(module)
    for name in filter(None, path.split(".")):
        found = getattr(found, name)
    if not callable(getattr(found, "handlers", None)):
        raise TypeError(f"{source} is a {type(found).__name__} and has no handlers()")
    return cast(HandlerSource, found)


def main() -> None:
    source, line, read_end, worker = sys.argv[1:]
    exit_with_worker(int(worker), int(read_end))
    os.set_inheritable(int(line), False)
    os.set_inheritable(int(read_end), False)
    # Output of handlers belongs in the log of the worker, not in its standard output.
    os.dup2(2, 1)
    connection = socket.socket(fileno=int(line))
    Child(connection, int(read_end), source).serve()
    # Open until the process is gone: the worker takes a closed connection for death, and exit handlers may still have
    # to run.
    connection.detach()


if __name__ == "__main__":
    main()
