"""Find tests whose result depends on how fast the machine is. ``make check`` runs it.

Five things are refused in ``tests/``, outside ``tests/system``:

- ``asyncio.sleep`` or ``time.sleep`` with a literal. Wait for a condition (``tests.support.waiting``) or use virtual
  time (``tests.support.virtual``). ``sleep(0)`` and sleeps of a minute or more ("until it is cancelled") are fine.
- A literal deadline under 60 s for a real wait: ``asyncio.timeout(5)``, ``asyncio.wait_for(x, 5)``.
- An assertion that compares a measured duration: ``assert time.monotonic() - began < 1``.
- ``deadline=`` under 60 s for ``eventually`` and ``wait_until``.
- A request of ``httpx2`` without ``timeout=``, which times out after 5 s, unless it has ``transport=``.

A module whose async tests all carry ``@in_virtual_time`` may sleep as it likes: no real time passes there.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHORTEST_DEADLINE = 60
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns", "process_time"}
REQUESTS = {f"httpx2.{name}" for name in ("get", "post", "put", "delete", "request", "stream", "Client", "AsyncClient")}
WAITS = {"timeout", "wait_for", "wait", "join", "communicate", "eventually", "wait_until", "run"}

#: Files that may measure or pause, and why.
ALLOWED = {
    "tests/support/waiting.py": "the one loop that waits in real time",
    "tests/support/simulation": "runs in virtual time",
}


def main(arguments: list[str]) -> int:
    paths = [Path(argument).resolve() for argument in arguments] or [ROOT / "tests"]
    files = sorted({file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])})
    problems = [problem for file in files if not _is_exempt(file) for problem in find(file)]
    for problem in problems:
        print(problem)
    if problems:
        print(f"{len(problems)} places depend on the speed of the machine; see tools/timing_lint.py")
    return 1 if problems else 0


def _is_exempt(file: Path) -> bool:
    name = file.relative_to(ROOT).as_posix()
    return name.startswith("tests/system/") or any(name == entry or name.startswith(f"{entry}/") for entry in ALLOWED)


def find(file: Path) -> Iterator[str]:
    """Each problem as ``file:line: message``."""
    tree = ast.parse(file.read_text())
    virtual = _is_virtual(tree)
    measured = _measured_names(tree)
    where = file.relative_to(ROOT)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not virtual and (message := _check_call(node)):
            yield f"{where}:{node.lineno}: {message}"
        elif isinstance(node, ast.Assert) and _compares_duration(node.test, measured):
            yield f"{where}:{node.lineno}: asserts a measured duration; measure in a benchmark, or use virtual time"


def _is_virtual(tree: ast.Module) -> bool:
    """Whether some test carries ``@in_virtual_time`` and no async test is without it."""
    tests = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    decorated = [test for test in tests if any("in_virtual_time" in ast.unparse(mark) for mark in test.decorator_list)]
    return bool(decorated) and all(test in decorated for test in tests if isinstance(test, ast.AsyncFunctionDef))


def _check_call(call: ast.Call) -> str | None:
    name = ast.unparse(call.func)
    seconds = [_number(argument) for argument in call.args]
    if name in {"asyncio.sleep", "time.sleep", "sleep"}:
        if seconds and seconds[0] is not None and 0 < seconds[0] < SHORTEST_DEADLINE:
            return f"sleeps for {seconds[0]:g} s; wait for a condition instead"
        return None
    if name in REQUESTS and not {"timeout", "transport"} & {keyword.arg for keyword in call.keywords}:
        return "a request times out after 5 s; pass timeout=DEADLINE_SECONDS"
    last = name.rpartition(".")[2]
    if last not in WAITS:
        return None
    limits = [_number(keyword.value) for keyword in call.keywords if keyword.arg in {"timeout", "deadline", "delay"}]
    if name == "asyncio.timeout" or (last in {"wait", "join"} and len(call.args) == 1):
        limits += seconds
    if last == "wait_for":
        limits += seconds[1:]
    if any(limit is not None and 0 < limit < SHORTEST_DEADLINE for limit in limits):
        return f"{last} gives up after less than {SHORTEST_DEADLINE} s"
    return None


def _number(node: ast.expr) -> float | None:
    """The value of an arithmetic expression of literals."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            factors = _number(left), _number(right)
            return factors[0] * factors[1] if factors[0] is not None and factors[1] is not None else None
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            factors = _number(left), _number(right)
            return factors[0] / factors[1] if factors[0] is not None and factors[1] else None
        case _:
            return None


def _reads_clock(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr in CLOCKS
        and ast.unparse(part.func.value) in {"time", "loop", "asyncio.get_running_loop()"}
        for part in ast.walk(node)
    )


def _measured_names(tree: ast.Module) -> set[str]:
    """Names that hold a difference of two clock readings."""
    return {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.BinOp)
        and isinstance(node.value.op, ast.Sub)
        and _reads_clock(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _compares_duration(test: ast.expr, measured: set[str]) -> bool:
    return any(
        isinstance(part, ast.Compare)
        and any(isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for operator in part.ops)
        and any(
            _reads_clock(side) or (isinstance(side, ast.Name) and side.id in measured)
            for side in (part.left, *part.comparators)
        )
        for part in ast.walk(test)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
