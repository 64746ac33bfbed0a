"""Find what a test leaves changed in its process. The next test must not depend on which one ran before it."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from types import ModuleType

from _pytest.logging import LogCaptureHandler

from tests.support.waiting import DEADLINE_SECONDS

#: pytest writes the name of the running test here.
_OF_PYTEST = {"PYTEST_CURRENT_TEST"}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1)
#: Threads that tests of a process share: those of the event loop's executor, and of the stores in ``KeptSqlite``. The
#: daemons that send spans and renew Vault's tokens never end; without new spans and tokens they do nothing.
_SHARED_THREADS = ("asyncio_", "mainspring-sqlite", "mainspring spans", "mainspring-vault")
#: The first server, sender of spans, client of Redis or logging task in a process configures these.
_FIRST_USE_LOGGERS = ("_granian", "granian", "opentelemetry.exporter.otlp", "push_response", "mainspring.task")
_NEW_LOGGER: tuple[object, ...] = (logging.NOTSET, [], True, False)


class CommandState:
    """What a command of ours changes in its process, which is expected to end with it."""

    def __init__(self) -> None:
        self._path, self._hook = list(sys.path), sys.excepthook
        #: ``sys.modules`` is in the order of the imports.
        self._newest = next(reversed(sys.modules))

    def undo(self, folder: Path) -> None:
        """Restore it. Forget modules imported from the folder since: another test may write one of the same name."""
        sys.path[:] = self._path
        sys.excepthook = self._hook
        for name in list(takewhile(lambda name: name != self._newest, reversed(sys.modules))):
            if _is_in(folder, sys.modules[name]):
                del sys.modules[name]


class ProcessState:
    """Everything of the process that tests have in common and that one of them could change."""

    def __init__(self) -> None:
        self.modules = dict(sys.modules)
        self.environment = {name: value for name, value in os.environ.items() if name not in _OF_PYTEST}
        self.settings = dict(_settings())
        self.threads = {thread for thread in threading.enumerate() if not thread.name.startswith(_SHARED_THREADS)}

    def changes(self) -> list[str]:
        """Describe what is different now. Modules that were imported meanwhile do not count."""
        now = ProcessState()
        return [
            *(f"sys.modules[{name!r}] is gone" for name in self.modules.keys() - now.modules.keys()),
            *(
                f"sys.modules[{name!r}] is another module"
                for name, module in now.modules.items()
                if self.modules.get(name, module) is not module
            ),
            *_differences("os.environ", self.environment, now.environment),
            *_differences("", self.settings, now.settings),
            *(f"thread {thread.name!r} is still alive" for thread in now.threads - self.threads if _survives(thread)),
        ]


def _settings() -> Iterator[tuple[str, object]]:
    yield "working directory", os.getcwd()
    yield "tracing", (sys.gettrace() is None, sys.getprofile() is None, sys.getswitchinterval(), gc.isenabled())
    yield "time zone", time.tzname
    yield "signal handlers", {number.name: signal.getsignal(number) for number in _SIGNALS}
    yield "event loop policy", asyncio.get_event_loop_policy()
    loggers = {
        name: _logger_state(logger)
        for name, logger in (("", logging.root), *logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and not name.startswith(_FIRST_USE_LOGGERS)
    }
    # An imported module may make a logger. That changes nothing.
    yield "loggers", {name: state for name, state in loggers.items() if state != _NEW_LOGGER}
    yield "disabled log levels", logging.root.manager.disable


def _logger_state(logger: logging.Logger) -> tuple[object, ...]:
    handlers = [handler for handler in logger.handlers if not isinstance(handler, LogCaptureHandler)]
    return logger.level, handlers, logger.propagate, logger.disabled


def _differences(where: str, before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"{where} {name}: {before.get(name)!r} became {now.get(name)!r}".lstrip()


def _survives(thread: threading.Thread) -> bool:
    thread.join(DEADLINE_SECONDS)
    return thread.is_alive()


def _is_in(folder: Path, module: ModuleType) -> bool:
    origin = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return isinstance(origin, str) and Path(origin).is_relative_to(folder)
