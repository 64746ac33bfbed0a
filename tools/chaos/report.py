"""The table of all faults, in Markdown between two marks of a page, and as JSON."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tools.chaos.catalogue import FAULTS
from tools.chaos.ensembles import BROKERS
from tools.chaos.faults import COORDINATORS
from tools.chaos.run import Outcome

BEGIN, END = "<!-- chaos: begin -->", "<!-- chaos: end -->"
_HEAD = (
    "| fault | coordination | times | runs | ticks | lost | doubled | early | missed or doubled ticks "
    "| stale writes refused | accepted | latest tick | recovery p50 | max |"
)
#: Of these, what a broker can affect.
_OF_FEEDERS = (0, 1, 2, 3, 5, 6, 11)
#: The rules of the judge under each column.
_LOST = ("lost", "stuck", "failed", "torn")
_DOUBLED = ("doubled", "made twice", "unstarted", "begun twice")
_TICKS = ("missed", "ticked twice")


def table(outcomes: list[Outcome]) -> str:
    rule = "|---|---|" + "---:|" * (_HEAD.count("|") - 3)
    return "\n".join([_HEAD, rule, *(_line(_cells(outcome)) for outcome in outcomes)])


def _cells(outcome: Outcome) -> list[object]:
    counts, felt = outcome.judgement["counts"], outcome.judgement["felt"]
    # Each is (name, latest, recovered), in microseconds.
    latest = max((one[1] for one in felt), default=0)
    recovered = [one[2] for one in felt] or [0]
    return [
        outcome.fault,
        outcome.coordination,
        outcome.repetitions,
        f"{outcome.judgement['runs']:,}",
        f"{outcome.judgement['ticks']:,}",
        sum(counts[name] for name in _LOST),
        sum(counts[name] for name in _DOUBLED),
        counts["early"],
        sum(counts[name] for name in _TICKS),
        outcome.refused,
        counts["stale"],
        _seconds(latest),
        _seconds(statistics.median(recovered)),
        _seconds(max(recovered)),
    ]


def brokers_table(outcomes: list[Outcome]) -> str:
    """How late work is when a broker fails."""
    head = "| fault | broker | times | runs | lost | doubled | latest tick |"
    rows = [_line(_cells(outcome)[place] for place in _OF_FEEDERS) for outcome in outcomes]
    return "\n".join([head, "|---|---|" + "---:|" * (head.count("|") - 3), *rows])


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _seconds(micros: float) -> str:
    return f"{micros / 1_000_000:.1f} s"


def publish(page: Path, text: str) -> None:
    """Replace what is between the marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


class Results:
    """The outcomes so far, one for each fault and coordinator, in a file: a run can be interrupted, and the
    table can be made of several runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        known = json.loads(path.read_text()) if path.exists() else []
        self._outcomes = [Outcome(**one) for one in known]

    def add(self, outcome: Outcome) -> None:
        others = [one for one in self._outcomes if _place(one) != _place(outcome)]
        self._outcomes = sorted([*others, outcome], key=_place)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps([asdict(one) for one in self._outcomes], indent=2) + "\n")
        beside.replace(self._path)

    def of(self, *, repetitions: int, rate: int, crons: int) -> list[Outcome]:
        """Those under this load, tried so often at least; in the order of the table."""
        return [
            one for one in self._outcomes if (one.rate, one.crons) == (rate, crons) and one.repetitions >= repetitions
        ]

    def seconds(self, fault: str, coordination: str) -> float | None:
        """How long it took the last time."""
        return next(
            (one.took for one in self._outcomes if (one.fault, one.coordination) == (fault, coordination)), None
        )

    def usual_seconds(self) -> float:
        return statistics.mean(one.took for one in self._outcomes) if self._outcomes else 0


def _place(outcome: Outcome) -> tuple[int, int]:
    return list(FAULTS).index(outcome.fault), [*COORDINATORS, *BROKERS].index(outcome.coordination)
