"""Sync tasks for child processes, most of which behave badly. Their payload is a JSON object of arguments."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from mainspring import GiveUp, Retry
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.worker.executors.interruption import Interrupted
from mainspring.core.worker.handler import AsyncHandler, Handler, SyncHandler
from tests.support.waiting import wait_until

Arguments = dict[str, str]


def _note(arguments: Arguments, text: str) -> None:
    """Write a file for the test, all at once."""
    path = Path(arguments["note"])
    unfinished = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    unfinished.write_text(text)
    unfinished.replace(path)


def identify(arguments: Arguments) -> str:
    return f"{os.getpid()}"


def wait(arguments: Arguments) -> str:
    """Wait in small steps, where an interruption arrives, until the test makes a file."""
    if "note" in arguments:
        _note(arguments, str(os.getpid()))
    released = Path(arguments.get("until", "never"))
    wait_until(released.exists, deadline=1_000)
    return f"{os.getpid()}"


def hang(arguments: Arguments) -> None:
    """Wait inside C, where no interruption arrives."""
    _note(arguments, str(os.getpid()))
    time.sleep(1_000)


def clean_up(arguments: Arguments) -> None:
    _note(arguments, "began")
    try:
        wait_until(lambda: False, deadline=1_000)
    except Interrupted:
        _note(arguments, "cleaned up")
        raise


def exit_at_once(arguments: Arguments) -> None:
    os._exit(3)


def crash(arguments: Arguments) -> None:
    ctypes.string_at(0)


def close_descriptors(arguments: Arguments) -> str:
    os.closerange(0, 3)
    return f"{os.getpid()}"


def close_connection(arguments: Arguments) -> str:
    """As programs do that become daemons."""
    os.closerange(3, 1024)
    return f"{os.getpid()}"


def close_connection_and_hang(arguments: Arguments) -> str:
    os.closerange(3, 1024)
    threading.Event().wait()
    return ""


def reuse_connection(arguments: Arguments) -> str:
    """The descriptor of the connection leads somewhere else, where nothing of the worker may be written."""
    os.closerange(3, 1024)
    for _ in range(50):
        os.open(os.devnull, os.O_RDWR)
    return ""


def replace_descriptor(arguments: Arguments) -> str:
    """Standard output is another file from here on: what later runs print would get into it."""
    os.close(1)
    assert os.open(os.devnull, os.O_WRONLY) == 1
    return f"{os.getpid()}"


def make_noise(arguments: Arguments) -> str:
    print("noise on standard output" * 1_000)  # noqa: T201
    os.write(1, b"more noise\n")
    sys.stderr.write("and on standard error\n")
    return "quiet"


def big(arguments: Arguments) -> str:
    return "x" * 10_000_000


def fail(arguments: Arguments) -> None:
    raise ValueError(f"bad input in {os.getpid()}")


class NotAnException(BaseException):
    """Derived from ``BaseException``, which ``except Exception`` does not catch."""


def raise_oddly(arguments: Arguments) -> None:
    kinds = (NotAnException, GeneratorExit, KeyboardInterrupt, SystemExit)
    raise next(kind for kind in kinds if kind.__name__ == arguments["kind"])("by a handler")


def choose_failure(arguments: Arguments) -> None:
    match arguments["failure"]:
        case "later":
            raise Retry(after="5m")
        case "never":
            raise GiveUp("bad address")
        case _:
            raise ConnectionResetError("by a handler")


def leave_a_grandchild(arguments: Arguments) -> None:
    grandchild = subprocess.Popen(["sleep", "1000"])
    _note(arguments, f"{os.getpid()} {grandchild.pid}")
    time.sleep(1_000)


def run_escaping_program(arguments: Arguments) -> None:
    """Run a program that ignores TERM and starts others in new sessions, whose parents have ended."""
    escape = "setsid sh -c 'setsid sh -c \"trap : TERM; exec sleep 1000\" & exit' & trap '' TERM"
    subprocess.run(["sh", "-c", f'{escape}; (setsid sleep 1000 &); echo began > "$0"; sleep 1000', arguments["note"]])


def wait_for_a_program(arguments: Arguments) -> None:
    """Wait inside C for a program that cleans up on SIGTERM."""
    program = 'trap \'echo asked > "$0"; exit\' TERM; echo began > "$0.began"; while :; do sleep 0.05; done'
    started = subprocess.Popen(["sh", "-c", program, arguments["note"]])
    try:
        started.wait()
    except Interrupted:
        started.wait()
        raise


def spin(arguments: Arguments) -> None:
    """Hold the interpreter lock, so that no thread of the process runs again."""
    grandchild = subprocess.Popen(["sleep", "1000"])
    _note(arguments, f"{os.getpid()} {grandchild.pid}")
    ctypes.PyDLL(None).sleep(1_000)


async def async_identify(held: HeldRun) -> bytes | None:
    return str(os.getpid()).encode()


async def async_exit(held: HeldRun) -> bytes | None:
    os._exit(3)


def _handler(
    function: Callable[[Arguments], str | None], mode: Literal["child", "process", "thread"] = "child"
) -> Handler:
    def invoke(held: HeldRun) -> bytes | None:
        arguments = msgspec.json.decode(held.payload, type=Arguments | None)
        result = function(arguments or {})
        return None if result is None else msgspec.json.encode(result)

    return SyncHandler(f"{function.__name__}", invoke, mode)


class Application:
    def handlers(self) -> Mapping[str, Handler]:
        functions: list[Callable[[Arguments], str | None]] = [
            identify,
            wait,
            hang,
            clean_up,
            exit_at_once,
            close_descriptors,
            close_connection,
            close_connection_and_hang,
            reuse_connection,
            replace_descriptor,
            crash,
            make_noise,
            big,
            fail,
            raise_oddly,
            choose_failure,
            leave_a_grandchild,
            run_escaping_program,
            wait_for_a_program,
            spin,
        ]
        handlers: dict[str, Handler] = {function.__name__: _handler(function) for function in functions}
        handlers["process_wait"] = _handler(wait, "process")
        handlers["thread_wait"] = _handler(wait, "thread")
        handlers["thread_raise_oddly"] = _handler(raise_oddly, "thread")
        handlers["thread_choose_failure"] = _handler(choose_failure, "thread")
        handlers["async_identify"] = AsyncHandler("async_identify", async_identify)
        handlers["async_exit"] = AsyncHandler("async_exit", async_exit)
        return handlers


app = Application()
