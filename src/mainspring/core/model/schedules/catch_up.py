"""Catch-up: what happens to ticks that were missed while no scheduler could fire them."""

from typing import Literal

import msgspec

from mainspring.core.model.base.checks import check_whole, check_word
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, SECOND, Instant, Micros

LONGEST: Micros = 366 * DAY


class CatchUp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """none: late ticks are skipped. latest: only the newest runs. all: each tick within cap and age runs, at a pace."""

    mode: Literal["none", "latest", "all"] = "latest"
    #: A tick within this delay counts as on time. It must exceed the worst delay of a healthy scheduler.
    grace: Micros = 60 * SECOND
    #: The maximum number of missed ticks that run (mode all); the newest are kept.
    cap: int = 100
    #: Missed ticks older than this are skipped (mode all).
    max_age: Micros = DAY
    #: The minimum interval between the starts of caught-up runs (mode all).
    pace: Micros = 0

    def check(self) -> None:
        check_word("catchUp.mode", self.mode, ("none", "latest", "all"))
        check_whole("catchUp.cap", self.cap, 0, 10_000, "0 to 10000")
        for field, duration in (("grace", self.grace), ("maxAge", self.max_age), ("pace", self.pace)):
            check_whole(f"catchUp.{field}", duration, 0, LONGEST, "0s to 366 days")

    def check_meant(self) -> None:
        """Refuse options that would be ignored. This applies to new input only: stored policies keep working."""
        used = self.effective()
        for field, said, meant in (
            ("cap", self.cap, used.cap),
            ("maxAge", self.max_age, used.max_age),
            ("pace", self.pace, used.pace),
        ):
            if said != meant:
                raise Invalid(f"catchUp.{field}", f"does not go with mode {self.mode}", 'mode "all", or leave it out')

    def effective(self) -> "CatchUp":
        """Return the policy without the options that are ignored."""
        return self if self.mode == "all" else CatchUp(mode=self.mode, grace=self.grace)


class CaughtUp(msgspec.Struct, frozen=True):
    """The decision on one tick: the earliest start, or the reason why it is skipped."""

    tick: Instant
    not_before: Instant | None
    reason: str = ""


def decide(policy: CatchUp, ticks: list[Instant], now: Instant, *, outage: bool = False) -> list[CaughtUp]:
    """Decide on due ticks, in the same order.

    1. Ticks within the grace are on time. If all ticks are on time, all run, so a failover skips nothing.
    2. A late tick means an outage. Mode ``latest`` then runs only the newest tick, so that a job of every second does
       not resume with a minute's worth of runs.
    3. The newest tick is the last in the list, even if its time is not the latest: a calendar can move a tick to before
       its predecessor.
    4. ``outage``: earlier ticks that are not in the list were late.
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
    # By number, not by time: calendars may have moved several ticks to the same instant.
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
