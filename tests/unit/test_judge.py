"""The judge finds each kind of violation in a broken history, and none in a sound one."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.judge import Judgement, judge, read
from tools.judge.history import DecodeError
from tools.judge.rules import RULES, SECOND

Line = dict[str, Any]
Lines = list[Line]
ROOT = Path(__file__).parents[2]
BEGIN = 1_000 * SECOND
JOB = "job"


def a_run(name: str, at: int, *, fence: int = 1, session: int = 1, effect: bool = False) -> Lines:
    """A run that starts 1 ms after its submit and ends 10 ms later."""
    began = at + 1_000
    lines: Lines = [
        {"kind": "acknowledged", "run": name, "at": at, "effect": effect},
        {"kind": "started", "run": name, "fence": fence, "at": began, "due": at},
        an_end(name, at, fence=fence, session=session),
    ]
    return [*lines, {"kind": "effect", "run": name}] if effect else lines


def an_end(name: str, due: int, **other: Any) -> Line:
    end = {"kind": "ended", "run": name, "state": "succeeded", "fence": 1, "session": 1, "at": due + 11_000}
    return end | {"due": due, "started": due + 500} | other


def a_tick(number: int, *, late: int = 0, epoch: int = 1) -> Lines:
    tick, run = BEGIN + number * SECOND, f"tick-{number}"
    return [
        {"kind": "tick", "job": JOB, "tick": tick, "decision": "run", "run": run, "epoch": epoch},
        {"kind": "started", "run": run, "fence": 50 + number, "at": tick + late + 1_000, "due": tick},
        an_end(run, tick, fence=50 + number, at=tick + late + 9_000, job=JOB, tick=tick),
    ]


def sound() -> Lines:
    """Three runs, one of which was lost with its worker and repeated by another, and ten ticks of a job."""
    expected = {"kind": "expected", "job": JOB, "first": BEGIN, "last": BEGIN + 9 * SECOND, "every": SECOND}
    return [
        *a_run("plain", BEGIN),
        *a_run("effective", BEGIN + SECOND, effect=True),
        {"kind": "started", "run": "again", "fence": 7, "at": BEGIN + SECOND, "due": BEGIN + SECOND},
        {"kind": "given up", "run": "again", "fence": 7},
        *a_run("again", BEGIN + SECOND, fence=8, session=2),
        expected,
        *(line for number in range(10) for line in a_tick(number, epoch=1 + number // 5)),
    ]


def judge_lines(lines: Lines) -> Judgement:
    return judge(read(map(json.dumps, lines)))


def without(lines: Lines, **words: Any) -> Lines:
    return [line for line in lines if not words.items() <= line.items()]


def changed(lines: Lines, words: Line, **other: Any) -> Lines:
    assert any(words.items() <= line.items() for line in lines)
    return [line | other if words.items() <= line.items() else line for line in lines]


PLAIN_END = {"kind": "ended", "run": "plain"}
SECOND_TICK = BEGIN + 2 * SECOND

#: How each history is broken, and the rules that must detect it.
BROKEN: dict[str, tuple[Callable[[Lines], Lines], set[str]]] = {
    "an acknowledged run is nowhere": (
        lambda lines: [*without(lines, run="plain"), a_run("plain", BEGIN)[0]],
        {"lost"},
    ),
    "an acknowledged run never ended": (
        lambda lines: [*without(lines, **PLAIN_END), {"kind": "left", "run": "plain", "state": "running"}],
        {"lost"},
    ),
    "a tick's run never ended": (
        lambda lines: [
            *without(lines, kind="ended", run="tick-2"),
            {"kind": "left", "run": "tick-2", "state": "queued", "job": JOB, "tick": SECOND_TICK},
        ],
        {"stuck"},
    ),
    "a run failed": (lambda lines: changed(lines, PLAIN_END, state="failed"), {"failed"}),
    "a run ended twice": (lambda lines: [*lines, an_end("plain", BEGIN)], {"doubled"}),
    "a run ended and is still queued": (
        lambda lines: [*lines, {"kind": "left", "run": "plain", "state": "queued"}],
        {"doubled"},
    ),
    "an effect is there twice": (lambda lines: [*lines, {"kind": "effect", "run": "effective"}], {"doubled"}),
    "a repeated submit made a second run": (
        lambda lines: [
            *changed(lines, {"kind": "acknowledged", "run": "plain"}, key="k"),
            {"kind": "started", "run": "again", "fence": 9, "at": BEGIN + SECOND, "due": BEGIN, "key": "k"},
        ],
        {"made twice"},
    ),
    "an effect is missing": (lambda lines: without(lines, kind="effect"), {"torn"}),
    "an effect is there of a run that did not succeed": (
        lambda lines: changed(lines, {"kind": "ended", "run": "effective"}, state="cancelled"),
        {"torn", "failed"},
    ),
    "a success without a handler": (lambda lines: without(lines, kind="started", run="plain"), {"unstarted"}),
    "a success under a fence without a start": (
        lambda lines: changed(lines, PLAIN_END, fence=9),
        {"unstarted"},
    ),
    "two handlers under one fence": (
        lambda lines: [*lines, {"kind": "started", "run": "plain", "fence": 1, "at": BEGIN + 5_000, "due": BEGIN}],
        {"begun twice"},
    ),
    "a handler began early": (
        lambda lines: changed(lines, {"kind": "started", "run": "tick-2"}, at=SECOND_TICK - 3_000),
        {"early"},
    ),
    "the store itself recorded an early start": (
        lambda lines: changed(lines, {"kind": "ended", "run": "tick-2"}, started=SECOND_TICK - 1),
        {"early"},
    ),
    "a tick without a row": (
        lambda lines: [line for line in lines if line.get("tick") != SECOND_TICK and line.get("run") != "tick-2"],
        {"missed"},
    ),
    "a tick that was skipped": (
        lambda lines: changed(lines, {"kind": "tick", "tick": SECOND_TICK}, decision="skipped", run=None),
        {"missed"},
    ),
    "a tick whose run is nowhere": (lambda lines: without(lines, run="tick-2", kind="ended"), {"missed"}),
    "a tick with two rows": (
        lambda lines: [*lines, *(line for line in lines if line["kind"] == "tick" and line["tick"] == SECOND_TICK)],
        {"ticked twice"},
    ),
    "a tick with two runs": (
        lambda lines: [
            *lines,
            {"kind": "started", "run": "twin", "fence": 99, "at": SECOND_TICK + 1_000, "due": SECOND_TICK},
            an_end("twin", SECOND_TICK, fence=99, job=JOB, tick=SECOND_TICK),
        ],
        {"ticked twice"},
    ),
    "a run of a tick that the ledger does not know": (
        lambda lines: [
            *lines,
            {"kind": "started", "run": "twin", "fence": 99, "at": BEGIN + 99 * SECOND, "due": BEGIN},
            an_end("twin", BEGIN, fence=99, job=JOB, tick=BEGIN + 99 * SECOND),
        ],
        {"ticked twice"},
    ),
    "a tick at a time that the schedule does not have": (
        lambda lines: [*lines, {"kind": "tick", "job": JOB, "tick": BEGIN + 5, "decision": "run", "epoch": 1}],
        {"ticked twice"},
    ),
    "an old fence ended a run": (
        lambda lines: changed(lines, {"kind": "ended", "run": "again"}, fence=7),
        {"stale"},
    ),
    "an expired worker ended a run before another worker claimed it": (
        lambda lines: [*lines, {"kind": "given up", "run": "plain", "fence": 1}],
        {"stale"},
    ),
    "a replaced scheduler fired": (
        lambda lines: changed(lines, {"kind": "tick", "tick": BEGIN + 8 * SECOND}, epoch=1),
        {"stale"},
    ),
}


def test_a_sound_history_is_found_sound() -> None:
    judgement = judge_lines(sound())
    assert judgement.sound, judgement.examples
    assert (judgement.runs, judgement.ticks) == (13, 10)


@pytest.mark.parametrize("name", BROKEN)
def test_each_kind_of_violation_is_found(name: str) -> None:
    breaks, rules = BROKEN[name]
    judgement = judge_lines(breaks(sound()))
    assert {rule for rule, times in judgement.counts.items() if times} >= rules
    assert not judgement.sound
    assert {wrong.rule for wrong in judgement.examples} >= rules


def test_there_is_a_broken_history_for_every_rule() -> None:
    assert set().union(*(rules for _, rules in BROKEN.values())) == set(RULES)


def test_the_effect_of_a_fault_is_measured_by_late_ticks() -> None:
    ticks = [line for number in range(10) for line in a_tick(number, late=1_400_000 if number == 5 else 200)]
    fault = {"kind": "fault", "name": "kill", "at": BEGIN + 4_700_000}
    (felt,) = judge_lines([*ticks, fault]).felt
    assert felt.latest == 1_401_000
    assert felt.recovered == 1_701_000


def test_the_effect_of_a_fault_is_measured_by_delayed_submits() -> None:
    answered = [line for at in (0, 100, 200, 3_300, 3_400) for line in a_run(f"{at}", BEGIN + at * 1_000)]
    (felt,) = judge_lines([*answered, {"kind": "fault", "name": "kill", "at": BEGIN + 250_000}]).felt
    assert felt.recovered == 3_050_000


def test_each_fault_is_measured_until_the_next_one() -> None:
    ticks = [line for number in range(20) for line in a_tick(number, late=3_000_000 if number == 5 else 0)]
    faults = [{"kind": "fault", "name": "kill", "at": BEGIN + at * SECOND} for at in (5, 15)]
    assert [felt.recovered for felt in judge_lines([*ticks, *faults]).felt] == [3_001_000, 0]


def test_an_invalid_line_is_reported_by_its_number() -> None:
    with pytest.raises(DecodeError, match="line 2"):
        read(['{"kind": "effect", "run": "a"}', '{"kind": "efect", "run": "a"}'])


def test_the_judge_program_reports_violations_without_importing_mainspring(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    history.write_text("\n".join(map(json.dumps, [*sound(), an_end("plain", BEGIN)])))
    program = (
        "import sys; from tools.judge.__main__ import main; status = main(sys.argv[1:])\n"
        "assert not any(name.split('.')[0] == 'mainspring' for name in sys.modules)\n"
        "sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(history)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["counts"]["doubled"] == 1
