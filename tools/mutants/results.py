"""The known mutants: judged ones in ``.mutants/results.json``, explained survivors in the documentation."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.mutants.mutant import Mutant

_ROW = re.compile(r"^\| `([^`]+@[0-9a-f]{6})` \|", re.MULTILINE)
#: A mutant that hangs is noticed; one that no test executes is not.
KILLED = ("killed", "timed out")
SURVIVED = ("survived", "not covered")
#: It does not count as judged.
EQUIVALENT = "equivalent"


@dataclass(frozen=True)
class Result:
    """``text``: hash of the mutated file. ``record``: hash of the sources when its tests were chosen."""

    id: str
    outcome: str
    place: str
    change: str
    text: str
    record: str
    tests: int = 0
    test: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def file(self) -> str:
        return self.place.rpartition(":")[0]


class Results:
    """Results by the id of the mutant, written after each change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        known = json.loads(path.read_text()) if path.exists() else []
        self._results = {value["id"]: Result(**value) for value in known}

    def get_valid(self, mutant: Mutant, text: str, record: str) -> Result | None:
        """The result of the same edit of the same text. A survivor is judged again when the tests have changed."""
        result = self._results.get(mutant.id)
        if result is None or result.outcome == "error" or result.text != hash_mutated(mutant, text):
            return None
        return result if result.outcome not in SURVIVED or result.record == record else None

    def add(self, result: Result) -> None:
        self._results[result.id] = result
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps([asdict(value) for value in self._results.values()], indent=1))
        os.replace(draft, self._path)


def hash_mutated(mutant: Mutant, text: str) -> str:
    return hashlib.sha256(mutant.apply(text).encode()).hexdigest()[:16]


def read_explained(document: str) -> set[str]:
    """The ids in the first column of the tables of a page."""
    return set(_ROW.findall(document))


def find_outdated(explained: Iterable[str], ids: Iterable[str]) -> list[str]:
    """The explained ids that no mutant of the same files has: their function has changed since."""
    there = set(ids)
    files = {identifier.partition(":")[0] for identifier in there}
    return sorted(one for one in explained if one.partition(":")[0] in files and one not in there)


def summarize(results: Iterable[Result], explained: set[str]) -> tuple[list[str], list[Result]]:
    """The lines of the summary, and the survivors that are not explained."""
    by_file: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        by_file[result.file][result.outcome] += 1
    lines = [f"{'killed':>7} {'timed out':>10} {'survived':>9} {'not covered':>12} {'equivalent':>11}  file"]
    total: Counter[str] = Counter()
    for file, counts in sorted(by_file.items()):
        lines.append(_format(counts, file))
        total += counts
    lines.append(_format(total, "all files"))
    open_ = [one for one in results if one.outcome in SURVIVED and one.id not in explained]
    judged = sum(total[outcome] for outcome in (*KILLED, *SURVIVED))
    killed = sum(total[outcome] for outcome in KILLED)
    known = sum(total[outcome] for outcome in SURVIVED) - len(open_)
    share = f"{100 * killed / judged:.1f} %" if judged else "none"
    lines.append(f"{judged} judged, {share} killed, {known} explained, {len(open_)} to look at")
    if total["error"]:
        lines.append(f"{total['error']} could not be judged; see .mutants/results.json")
    return lines, open_


def _format(counts: Counter[str], name: str) -> str:
    widths = {"killed": 7, "timed out": 10, "survived": 9, "not covered": 12, EQUIVALENT: 11}
    return " ".join(f"{counts[outcome]:>{width}}" for outcome, width in widths.items()) + f"  {name}"
