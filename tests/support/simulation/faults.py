"""What goes wrong between a process and the store, and how often. All of it is drawn from one source of chance."""

from enum import Enum
from random import Random

import msgspec

from mainspring.domain.instant import MILLISECOND, SECOND, Micros


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """How often; every rate is a probability per message."""

    #: The usual time a message takes one way; chance makes it half as long to twice as long.
    latency: Micros = MILLISECOND
    #: A message that takes much longer, but arrives in time.
    slow: float = 0.0
    #: An operation that fails before anything is applied.
    refused: float = 0.0
    #: An operation that is applied, and whose reply is lost.
    reply_lost: float = 0.0
    #: A request that reaches the store after its sender gave up.
    late: float = 0.0
    #: A wake-up that nobody hears.
    ring_lost: float = 0.0


CALM = Rates()
_VERY_LATE: Micros = 12 * SECOND
#: What is asked many times a second meets trouble often enough at a fraction of the rates.
_CALMER = {"stage": 8, "renew": 5, "upcoming": 3, "due_jobs": 3, "claim": 2}


class Fate(Enum):
    ANSWERED = "answered"
    REFUSED = "refused"
    REPLY_LOST = "reply lost"
    LATE = "late"


class Scripted(msgspec.Struct, frozen=True, kw_only=True):
    """The fate of the next request that is of this operation and from this process, or from one so named."""

    operation: str
    process: str = ""
    fate: Fate = Fate.ANSWERED
    request: Micros = MILLISECOND
    reply: Micros = MILLISECOND


class Faults:
    """The state of the network between everybody and the store."""

    def __init__(self, chance: Random, rates: Rates, patience: Micros = 2 * SECOND) -> None:
        self.chance = chance
        self.rates = rates
        #: How long a client waits for an answer before it gives up.
        self.patience = patience
        #: By then even the latest request has arrived, by the time the world has been there.
        self.all_arrive_by: Micros = 1 << 62
        self.away = False
        #: Requests vanish instead of being refused.
        self.silent = False
        #: Processes that cannot reach the store.
        self.cut_off: set[str] = set()
        #: Operations that are refused, whoever asks.
        self.broken: set[str] = set()
        #: What happens to the next requests of a kind, instead of chance.
        self.script: list[Scripted] = []

    def fate(self, operation: str, process: str) -> tuple[Fate, Micros, Micros]:
        """What becomes of a request, and how long it and its reply take."""
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
            # Some by a moment, some after everybody has long gone on.
            longest = 2 * self.patience if chance.random() < 0.6 else _VERY_LATE
            return Fate.LATE, self.patience + round(longest * chance.random()), reply
        drawn -= rates.late
        if drawn < rates.slow:
            # Some of these reach the store in time, but their reply does not reach the sender.
            request += round(self.patience * 0.7 * chance.random())
            reply += round(self.patience * 0.7 * chance.random())
        return Fate.ANSWERED, request, reply

    def reaches(self, process: str) -> bool:
        return not self.away and process not in self.cut_off

    def loses_ring(self) -> bool:
        lost = self.rates.ring_lost
        return lost > 0 and self.chance.random() < lost

    def ring_takes(self) -> Micros:
        return self._latency()

    def stop(self) -> None:
        """From now on all is well."""
        self.rates = CALM
        self.away = self.silent = False
        self.cut_off.clear()
        self.broken.clear()

    def _latency(self) -> Micros:
        return round(self.rates.latency * (0.5 + 1.5 * self.chance.random()))
