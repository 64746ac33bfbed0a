"""Faults between a process and the store, and their rates. All are drawn from one random generator."""

from enum import Enum
from random import Random

import msgspec

from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of faults, as probabilities per message."""

    #: The usual one-way time of a message. It varies between half and twice of that.
    latency: Micros = MILLISECOND
    #: A message that takes much longer, but arrives in time.
    slow: float = 0.0
    #: An operation that fails before anything is applied.
    refused: float = 0.0
    #: An operation that is applied, and whose reply is lost.
    reply_lost: float = 0.0
    #: A request that reaches the store after its sender has timed out.
    late: float = 0.0
    #: A notification that is lost.
    notify_lost: float = 0.0


CALM = Rates()
_VERY_LATE: Micros = 12 * SECOND
#: Frequent operations meet enough faults at a fraction of the rates.
_CALMER = {"stage": 8, "renew": 5, "upcoming": 3, "due_jobs": 3, "claim": 2}


class Fate(Enum):
    ANSWERED = "answered"
    REFUSED = "refused"
    REPLY_LOST = "reply lost"
    LATE = "late"


class Scripted(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of the next request of an operation from a process, or from one whose name begins so."""

    operation: str
    process: str = ""
    fate: Fate = Fate.ANSWERED
    request: Micros = MILLISECOND
    reply: Micros = MILLISECOND


class Faults:
    """The state of the network between all processes and the store."""

    def __init__(self, chance: Random, rates: Rates, patience: Micros = 2 * SECOND) -> None:
        self.chance = chance
        self.rates = rates
        #: The timeout of a client.
        self.patience = patience
        #: By this time of the world, every late request has arrived.
        self.all_arrive_by: Micros = 1 << 62
        self.away = False
        #: Requests vanish instead of being refused.
        self.silent = False
        #: Processes that cannot reach the store.
        self.cut_off: set[str] = set()
        #: Operations that are refused for all processes.
        self.broken: set[str] = set()
        #: Prepared fates of the next requests, instead of random ones.
        self.script: list[Scripted] = []

    def fate(self, operation: str, process: str) -> tuple[Fate, Micros, Micros]:
        """Draw the fate of a request, and the times of it and of its reply."""
        rates, chance = self.rates, self.chance
        for scripted in self.script:
            if scripted.operation == operation and process.startswith(scripted.process):
                self.script.remove(scripted)
                return scripted.fate, scripted.request, scripted.reply
        request, reply = self._latency(), self._latency()
        drawn = chance.random() * _CALMER.get(operation, 1)
        if drawn < rates.refused:
            return Fate.REFUSED, request, reply
        drawn -= rates.refused
        if drawn < rates.reply_lost:
            return Fate.REPLY_LOST, request, reply
        drawn -= rates.reply_lost
        if drawn < rates.late:
            # Some are late by a moment, some by a long time.
            longest = 2 * self.patience if chance.random() < 0.6 else _VERY_LATE
            return Fate.LATE, self.patience + round(longest * chance.random()), reply
        drawn -= rates.late
        if drawn < rates.slow:
            # Some of these reach the store in time, but the reply is too late.
            request += round(self.patience * 0.7 * chance.random())
            reply += round(self.patience * 0.7 * chance.random())
        return Fate.ANSWERED, request, reply

    def reaches(self, process: str) -> bool:
        return not self.away and process not in self.cut_off

    def loses_ring(self) -> bool:
        lost = self.rates.notify_lost
        return lost > 0 and self.chance.random() < lost

    def notify_takes(self) -> Micros:
        return self._latency()

    def stop(self) -> None:
        """Stop all faults."""
        self.rates = CALM
        self.away = self.silent = False
        self.cut_off.clear()
        self.broken.clear()

    def _latency(self) -> Micros:
        return round(self.rates.latency * (0.5 + 1.5 * self.chance.random()))
