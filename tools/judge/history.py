"""A history as it is read: one list or table a kind of line."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Start(NamedTuple):
    fence: int
    at: int
    due: int


class End(NamedTuple):
    state: str
    fence: int
    session: int | None
    at: int
    due: int
    started: int | None


class Tick(NamedTuple):
    decision: str
    run: str | None
    epoch: int


class Expected(NamedTuple):
    first: int
    last: int
    every: int


class Fault(NamedTuple):
    at: int
    name: str


class DecodeError(Exception):
    """A line that is no part of a history."""


@dataclass
class History:
    #: When each run was acknowledged, and those of them that leave an effect.
    acknowledged: dict[str, int] = field(default_factory=dict)
    with_effect: set[str] = field(default_factory=set)
    starts: defaultdict[str, list[Start]] = field(default_factory=lambda: defaultdict(list))
    ends: defaultdict[str, list[End]] = field(default_factory=lambda: defaultdict(list))
    left: dict[str, str] = field(default_factory=dict)
    #: The fences of attempts that came to nothing.
    given_up: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    effects: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    expected: dict[str, Expected] = field(default_factory=dict)
    ticks: defaultdict[tuple[str, int], list[Tick]] = field(default_factory=lambda: defaultdict(list))
    #: Every run that names a tick, whether the ledger has it or not.
    runs_of_ticks: defaultdict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    #: The runs that were made for each thing that was submitted, however often it was sent.
    runs_of_keys: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    faults: list[Fault] = field(default_factory=list)

    def add(self, line: dict[str, Any]) -> None:
        match line["kind"]:
            case "acknowledged":
                self.acknowledged.setdefault(line["run"], line["at"])
                if line.get("effect"):
                    self.with_effect.add(line["run"])
                self._note_key(line)
            case "started":
                self.starts[line["run"]].append(Start(line["fence"], line["at"], line["due"]))
                self._note_key(line)
            case "ended":
                end = End(
                    line["state"], line["fence"], line.get("session"), line["at"], line["due"], line.get("started")
                )
                self.ends[line["run"]].append(end)
                self._note_tick(line)
            case "left":
                self.left[line["run"]] = line["state"]
                self._note_tick(line)
            case "given up":
                self.given_up[line["run"]].add(line["fence"])
            case "effect":
                self.effects[line["run"]] += 1
            case "expected":
                self.expected[line["job"]] = Expected(line["first"], line["last"], line["every"])
            case "tick":
                tick = Tick(line["decision"], line.get("run"), line["epoch"])
                self.ticks[line["job"], line["tick"]].append(tick)
            case "fault":
                self.faults.append(Fault(line["at"], line["name"]))
            case other:
                raise DecodeError(f"{other!r} is no kind of line")

    def _note_key(self, line: dict[str, Any]) -> None:
        if line.get("key"):
            self.runs_of_keys[line["key"]].add(line["run"])

    def _note_tick(self, line: dict[str, Any]) -> None:
        if line.get("job") is not None and line.get("tick") is not None:
            self.runs_of_ticks[line["job"], line["tick"]].add(line["run"])


def read(lines: Iterable[str]) -> History:
    history = History()
    for number, line in enumerate(lines, 1):
        try:
            history.add(json.loads(line))
        except (ValueError, KeyError, TypeError, DecodeError) as error:
            raise DecodeError(f"line {number}: {error!r}") from error
    return history
