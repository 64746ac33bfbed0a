"""What happens to ticks that were missed while nothing could fire them."""

from typing import Literal

import msgspec

from mainspring.core.model.base.checks import check_whole, check_word
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, SECOND, Instant, Micros

LONGEST: Micros = 366 * DAY


class CatchUp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """none: a late tick is skipped. latest: only the newest runs. all: every one, within cap and age, at a pace."""

    mode: Literal["none", "latest", "all"] = "latest"
    #: A tick fired this late is not late: it must exceed the worst delay of a healthy scheduler.
    grace: Micros = 60 * SECOND
    #: At most this many missed ticks run (mode all); the newest are kept.
    cap: int = 100
    #: Missed ticks older than this are skipped (mode all).
    max_age: Micros = DAY
    #: Caught-up runs start at least this far apart (mode all).
    pace: Micros = 0

    def check(self) -> None:
        check_word("catchUp.mode", self.mode, ("none", "latest", "all"))
        check_whole("catchUp.cap", self.cap, 0, 10_000, "0 to 10000")
        for field, duration in (("grace", self.grace), ("maxAge", self.max_age), ("pace", self.pace)):
            check_whole(f"catchUp.{field}", duration, 0, LONGEST, "0s to 366 days")

    def check_meant(self) -> None:
        """Refuse what would be ignored. Only of what somebody says now: what is stored goes on as it always did."""
        used = self.effective()
        for field, said, meant in (
            ("cap", self.cap, used.cap),
            ("maxAge", self.max_age, used.max_age),
            ("pace", self.pace, used.pace),
        ):
            if said != meant:
                raise Invalid(f"catchUp.{field}", f"does not go with mode {self.mode}", 'mode "all", or leave it out')

    def effective(self) -> "CatchUp":
        """The same without what is ignored."""
        return self if self.mode == "all" else CatchUp(mode=self.mode, grace=self.grace)


class CaughtUp(msgspec.Struct, frozen=True):
    """The decision on one tick: when it may start, or why it does not run."""

    tick: Instant
    not_before: Instant | None
    reason: str = ""


def decide(policy: CatchUp, ticks: list[Instant], now: Instant, *, outage: bool = False) -> list[CaughtUp]:
    """Decide on ticks that are due, and return the decisions in the same order. Ticks within the grace are on time.

    If all ticks are on time, all run: a fail-over skips nothing. A late one among them means an outage; then
    ``latest`` runs only the newest, so that a job of every second does not come back with a minute's worth of runs.

    The last tick is the newest, even if its time is not the latest: a calendar can move a tick to a time before the
    one of its predecessor.

    ``outage``: ticks before these were late.
    """
    late = [tick for tick in ticks if now - tick > policy.grace]
    if policy.mode == "latest" and ticks and (late or outage):
        newest = ticks[-1]
        superseded = [CaughtUp(tick, None, "superseded by a later tick") for tick in ticks[:-1]]
        return [*superseded, CaughtUp(newest, now if now - newest > policy.grace else newest)]
    missed = [CaughtUp(tick, None, "missed") for tick in late]
    caught_up = iter(_decide_all(policy, late, now) if policy.mode == "all" else missed)
    return [next(caught_up) if now - tick > policy.grace else CaughtUp(tick, tick) for tick in ticks]


def _decide_all(policy: CatchUp, late: list[Instant], now: Instant) -> list[CaughtUp]:
    # By number, not by time: calendars may have put several at the same instant.
    young = [number for number, tick in enumerate(late) if now - tick <= policy.max_age]
    kept = set(young[max(len(young) - policy.cap, 0) :])
    decided = []
    place = 0
    for number, tick in enumerate(late):
        if number in kept:
            decided.append(CaughtUp(tick, now + place * policy.pace))
            place += 1
        else:
            reason = "too old" if now - tick > policy.max_age else f"over the cap of {policy.cap}"
            decided.append(CaughtUp(tick, None, reason))
    return decided
