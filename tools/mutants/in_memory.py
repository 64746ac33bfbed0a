"""Judges mutants of SQL, many in one process, which replaces statements in memory.

Starting pytest, importing the package and creating a database takes longer than the tests of one mutant. The process
reads its plans from a file, and writes one line for each mutant that it has judged. It ends early after a mutant whose
test does not pass again without the mutant, or that hung: such a mutant may have spoiled the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from tools.mutants.mutant import Mutant
from tools.mutants.paths import DATA, PACKAGE, ROOT, STORES
from tools.mutants.record import build_environment
from tools.mutants.same_program import read_procedures
from tools.mutants.server import RunResult

if TYPE_CHECKING:
    import apsw

    from mainspring.core.ports.clock import Clock
    from mainspring.stores.sqlite import SqliteStore

_PLANS, _ANSWERS, _OUTPUT = DATA / "plans.json", DATA / "answers.jsonl", DATA / "in_memory.log"
_POSTGRES, _SQLITE = f"{STORES}/postgres/queries/", f"{STORES}/sqlite/procedures/"
#: A test of a store takes a fraction of a second, but the machine may be busy.
_HANGS = 180


class Plan(msgspec.Struct):
    """``text``: the mutated file."""

    id: str
    file: str
    text: str
    tests: list[str]


class Answer(msgspec.Struct):
    """``tests``: how many have run. ``spoiled``: the failed test fails without the mutant, too."""

    id: str
    outcome: str
    tests: int
    seconds: float
    test: str = ""
    error: str = ""
    spoiled: bool = False


def can_judge(mutant: Mutant) -> bool:
    return mutant.file.startswith((_POSTGRES, _SQLITE))


def judge(plans: list[Plan], tell: Callable[[Answer], None]) -> None:
    """Judge all plans, in as many processes as it takes, one after the other."""
    left = {plan.id: plan for plan in plans}
    while left:
        _PLANS.write_bytes(msgspec.json.encode(list(left.values())))
        _ANSWERS.write_text("")
        with _OUTPUT.open("w") as output:
            command = [sys.executable, "-m", "tools.mutants.in_memory"]
            process = subprocess.Popen(
                command, cwd=ROOT, env=build_environment(ROOT / "src"), stdout=output, stderr=output
            )
            read = 0
            while True:
                ended = process.poll() is not None
                lines = _ANSWERS.read_text().splitlines(keepends=True)
                for line in lines[read:]:
                    if line.endswith("\n"):
                        read += 1
                        answer = msgspec.json.decode(line, type=Answer)
                        del left[answer.id]
                        tell(answer)
                if ended:
                    break
                time.sleep(0.2)
        if not read:
            sys.exit(f"the process that judges mutants ended with {process.returncode}: see {_OUTPUT}")


class _Loop:
    """Runs the tests of each plan up to the first failure."""

    def __init__(self, plans: list[Plan]) -> None:
        self._plans = plans
        self._failure: RunResult | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        wanted = {test for plan in self._plans for test in plan.tests}
        items[:] = [item for item in items if item.nodeid in wanted]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._failure is None:
            text = str(report.longrepr)
            lines = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines()[-1:]
            error = " ".join(lines[0].split())[:200] if lines else ""
            self._failure = RunResult("timed out" if "Timeout (>" in error else "killed", report.nodeid, error)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        for plan in self._plans:
            began = time.monotonic()
            tests = [items[test] for test in plan.tests if test in items]
            count, result = 0, RunResult("survived" if tests else "error", "", "" if tests else "no test was collected")
            with replaced(plan):
                for item in tests:
                    count += 1
                    if failure := self._run(item):
                        result = failure
                        break
            # A test that fails anyway says nothing, and a hanging one leaves things behind.
            spoiled = result.outcome == "timed out"
            if result.outcome == "killed" and self._run(items[result.test]):
                result, spoiled = RunResult("error", result.test, "it fails without the mutant, too"), True
            seconds = round(time.monotonic() - began, 2)
            answer = Answer(plan.id, result.outcome, count, seconds, result.test, result.error, spoiled)
            with _ANSWERS.open("ab") as file:
                file.write(msgspec.json.encode(answer) + b"\n")
            if spoiled:
                # Not even the fixtures can be trusted to end.
                os._exit(0)
        return True

    def _run(self, item: pytest.Item) -> RunResult | None:
        """Run a test, and keep the database for the next one, whichever it is."""
        self._failure = None
        item.session._setupstate.teardown_exact(item)
        other = next(one for one in item.session.items if one is not item)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=other)
        return self._failure


def replaced(plan: Plan) -> AbstractContextManager[None]:
    """Replace the text of a file for the stores that are opened meanwhile."""
    return _replaced_procedures(plan) if plan.file.startswith(_SQLITE) else _replaced_statements(plan)


@contextmanager
def _replaced_procedures(plan: Plan) -> Iterator[None]:
    from mainspring.stores.sqlite import connection as connections
    from mainspring.stores.sqlite.constants import CONSTANTS
    from mainspring.stores.statements import insert_constants
    from tests.support.kept_sqlite import KeptSqlite

    texts = read_procedures() | {plan.file: plan.text}
    used: list[KeptSqlite] = []

    def create_replaced(connection: apsw.Connection) -> None:
        for text in texts.values():
            connection.execute(insert_constants(text, CONSTANTS))

    async def open_replaced(kept: KeptSqlite, clock: Clock) -> SqliteStore:
        if kept not in used:
            used.append(kept)
            kept._free.clear()
        return await open_store(kept, clock)

    create, open_store = connections.create_procedures, KeptSqlite.open_store
    module, kind = cast(Any, connections), cast(Any, KeptSqlite)
    module.create_procedures, kind.open_store = create_replaced, open_replaced
    try:
        yield
    finally:
        module.create_procedures, kind.open_store = create, open_store
        for kept in used:
            kept._free.clear()


@contextmanager
def _replaced_statements(plan: Plan) -> Iterator[None]:
    from mainspring.stores import statements
    from mainspring.stores.postgres import database

    def forget() -> None:
        database.load_statements.cache_clear()
        database.load_late_statements.cache_clear()

    read = statements._sections
    wanted = plan.file.removeprefix(f"{PACKAGE}/stores/postgres/")

    def read_replaced(package: str, file: str) -> dict[str, str]:
        return statements.split_sections(plan.text) if file == wanted else read(package, file)

    module: Any = statements
    module._sections = read_replaced
    forget()
    try:
        yield
    finally:
        module._sections = read
        forget()


def main() -> int:
    plans = msgspec.json.decode(_PLANS.read_bytes(), type=list[Plan])
    files = dict.fromkeys(test.partition("::")[0] for plan in plans for test in plan.tests)
    options = ["-q", "--no-header", "--tb=short", "-pno:cacheprovider", f"--timeout={_HANGS}"]
    return int(pytest.main([*options, *files], plugins=[_Loop(plans)]))


if __name__ == "__main__":
    sys.exit(main())
