"""A process that runs tests on a private copy of the package, forked for each mutant.

It imports the heavy libraries once, and nothing of Mainspring. It reads one request for each line of its standard
input and answers each with one line: see ``Request`` and ``Verdict``. The plugins that pytest rewrites are not
imported here, because pytest refuses to rewrite a module that is already loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

_HEAVY = (
    *("apsw", "asyncpg", "dateutil", "httpx2", "hypothesis", "hypothesis.strategies", "icalendar", "jinja2", "joserfc"),
    *("msgspec", "prometheus_client", "rich.console", "structlog", "typer", "uvloop"),
    *("watchfiles", "yaml"),
)
#: pytest's exit codes of a run that judged nothing: wrong usage, no tests.
_UNJUDGED = (4, 5)
_GRACE = 10.0


@dataclass(frozen=True)
class Request:
    """``seconds``: for all tests together. ``each``: for one test."""

    tests: list[str]
    seconds: float
    each: float


@dataclass(frozen=True)
class RunResult:
    """``outcome``: killed, survived, timed out or error. ``test``: the one that failed, with the end of its error."""

    outcome: str
    test: str = ""
    error: str = ""
    seconds: float = 0.0


class _Judge:
    """Runs the wanted tests in the wanted order and notes the first failure."""

    def __init__(self, tests: list[str]) -> None:
        self._order = {test: index for index, test in enumerate(tests)}
        self.passed = 0
        self.failed = ""
        self.error = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._order]
        items.sort(key=lambda item: self._order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.passed and report.when == "call"
        if report.failed:
            self._note(report.nodeid, str(report.longrepr))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(report.nodeid, str(report.longrepr))

    def _note(self, test: str, text: str) -> None:
        if not self.failed:
            lines = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines()[-1:]
            self.failed, self.error = test or "collection", " ".join(lines[0].split())[:200] if lines else ""


def _run_tests(request: Request, answer: Path) -> int:
    """In the child: run the tests up to the first failure, and write what happened."""
    judge = _Judge(request.tests)
    files = list(dict.fromkeys(test.partition("::")[0] for test in request.tests))
    options = ["-x", "-q", "--no-header", "--tb=short", "-pno:cacheprovider", f"--timeout={request.each}"]
    code = int(pytest.main([*options, *files], plugins=[judge]))
    answer.write_text(json.dumps({"passed": judge.passed, "test": judge.failed, "error": judge.error}))
    return code


def _judge(request: Request, folder: Path) -> RunResult:
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setsid()
            log = os.open(folder / "output.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(log, stream)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            code = _run_tests(request, answer)
        finally:
            os._exit(code)
    status = _wait(child, began + request.seconds)
    seconds = time.monotonic() - began
    if status is None:
        return RunResult("timed out", "", f"no result after {request.seconds:.0f} s", seconds)
    known: dict[str, Any] = json.loads(answer.read_text()) if answer.exists() else {}
    return _interpret(os.waitstatus_to_exitcode(status), known, seconds)


def _interpret(code: int, known: dict[str, Any], seconds: float) -> RunResult:
    test, error = known.get("test", ""), known.get("error", "")
    if "Timeout (>" in error:
        return RunResult("timed out", test, error, seconds)
    if code in _UNJUDGED or (code == 0 and not known.get("passed")):
        return RunResult("error", test, error or f"no test ran, exit code {code}", seconds)
    if code == 0:
        return RunResult("survived", "", "", seconds)
    return RunResult("killed", test, error or f"exit code {code}", seconds)


def _wait(child: int, until: float) -> int | None:
    """The status of the child; None if it had to be ended. SIGINT first, so that its fixtures drop their databases."""
    for signal_, limit in ((0, until), (signal.SIGINT, _GRACE), (signal.SIGKILL, 60.0)):
        if signal_:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal_)
            limit += time.monotonic()
        while time.monotonic() < limit:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                # Processes that the tests started and left behind.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child, signal.SIGKILL)
                return None if signal_ else status
            time.sleep(0.02)
    return None


def main(folder: Path) -> None:
    for name in _HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert not any(name.partition(".")[0] == "mainspring" for name in sys.modules)
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for line in sys.stdin:
        print(json.dumps(asdict(_judge(Request(**json.loads(line)), folder))), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
