"""The lint that refuses tests whose result depends on the speed of the machine."""

from pathlib import Path

import pytest

from tools import timing_lint

IN_VIRTUAL_TIME = "@in_virtual_time\nasync def test_one() -> None:\n    "
IN_REAL_TIME = "async def test_one() -> None:\n    "


@pytest.fixture
def findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Findings":
    monkeypatch.setattr(timing_lint, "ROOT", tmp_path)
    return Findings(tmp_path / "test_it.py")


class Findings:
    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, text: str) -> list[str]:
        self._file.write_text(text)
        return [problem.partition(": ")[2] for problem in timing_lint.find(self._file)]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("await asyncio.sleep(0.1)", "sleeps for 0.1 s"),
        ("time.sleep(2 * 5)", "sleeps for 10 s"),
        ("async with asyncio.timeout(5): pass", "timeout gives up"),
        ("await asyncio.wait_for(event.wait(), 1)", "wait_for gives up"),
        ("thread.join(timeout=2)", "join gives up"),
        ("await eventually(check, deadline=30)", "eventually gives up"),
        ("httpx2.get(url)", "a request times out"),
        ("async with httpx2.AsyncClient(base_url=url) as client: pass", "a request times out"),
        ("assert time.monotonic() - began < 1", "asserts a measured duration"),
        ("took = time.perf_counter() - began\n    assert took <= 0.5", "asserts a measured duration"),
    ],
)
def test_a_dependence_on_speed_is_found(findings: Findings, statement: str, message: str) -> None:
    [found] = findings(IN_REAL_TIME + statement)
    assert found.startswith(message)


@pytest.mark.parametrize(
    "statement",
    [
        "await asyncio.sleep(0)",
        "await asyncio.sleep(3_600)",
        "await asyncio.sleep(pause)",
        "async with asyncio.timeout(60): pass",
        "await eventually(check)",
        "httpx2.get(url, timeout=DEADLINE_SECONDS)",
        "httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app))",
        "assert clock.monotonic() - began < 1",
    ],
)
def test_waiting_for_a_condition_is_allowed(findings: Findings, statement: str) -> None:
    assert findings(IN_REAL_TIME + statement) == []


def test_a_module_in_virtual_time_may_sleep(findings: Findings) -> None:
    assert findings(IN_VIRTUAL_TIME + "await asyncio.sleep(5)") == []


def test_one_async_test_in_real_time_makes_the_module_real(findings: Findings) -> None:
    text = IN_VIRTUAL_TIME + "await asyncio.sleep(5)\n\n" + IN_REAL_TIME.replace("one", "two") + "pass"
    assert findings(text) == ["sleeps for 5 s; wait for a condition instead"]
