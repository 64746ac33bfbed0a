"""How far a run is: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter

_PLAIN_EVERY = 20


class Progress:
    def __init__(self, total: int) -> None:
        self._total = total
        self._counts: Counter[str] = Counter()
        self._began = time.monotonic()
        self._judged = 0

    def add(self, outcome: str, *, known: bool = False) -> None:
        """``known``: from an earlier run, so that it says nothing about the rate."""
        self._counts[outcome] += 1
        self._judged += not known
        done = self._counts.total()
        if sys.stdout.isatty():
            print(f"\r\x1b[2K{self._describe(done)}", end="\n" if done == self._total else "", flush=True)
        elif done % _PLAIN_EVERY == 0 or done == self._total:
            print(self._describe(done), flush=True)

    def note(self, line: str) -> None:
        """Print a line above the progress."""
        print(f"\r\x1b[2K{line}" if sys.stdout.isatty() else line, flush=True)

    def _describe(self, done: int) -> str:
        rate = 60 * self._judged / max(time.monotonic() - self._began, 1)
        counts = ", ".join(f"{self._counts[name]} {name}" for name in sorted(self._counts))
        left = f", {(self._total - done) / rate:.0f} min left" if rate and done < self._total else ""
        return f"{done}/{self._total} mutants: {counts}; {rate:.1f}/min{left}"
