"""Fan-outs: one run of a task per item, created in parts with bounded concurrency, and counted when they end.

    root ─▶ part 0 ─▶ part 3 ─▶ part 5      the root creates as many parts as may be open at a time;
         ├▶ part 1 ─▶ part 6                the gathering of a part creates one of the first missing parts
         └▶ part 2 ─▶ part 4 ─▶ part 7

A part consists of its members and the run that gathers them, which depends on all of them. Parts are created nearly in
order: a part is not created while as many earlier parts are missing as may be open. All ids derive from the root's id,
so repeating a step creates nothing twice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, TypeAlias

import msgspec

from mainspring.core.model.base.checks import check_whole
from mainspring.core.model.base.ids import RunId, decode_shard, derived_id, made_at
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant, Micros
from mainspring.core.model.runs.rank import MOST_URGENT
from mainspring.core.model.runs.run import RunState

MAX_MEMBERS = 100_000_000
MAX_AT_A_TIME = 100_000
AT_A_TIME = 10_000
#: The maximum size of a part, which one transaction creates. Some stores count all members each time some have ended.
LARGEST_PART = 500
#: The minimum number of open parts, if there are that many: with one, all would wait for its slowest member.
_FEWEST_OPEN = 10
#: The priority of the few runs that manage members. Behind the members in the queue, they would report no progress and
#: create no further part until all members are done.
OWN_PRIORITY = MOST_URGENT
#: Results are returned only by fan-outs with at most this many members.
MOST_RESULTS = 1_000

#: The shortest and the longest interval between progress checks; in between, a fraction of the time elapsed.
_FIRST_LOOK: Micros = 100 * MILLISECOND
_LAST_LOOK: Micros = 10 * SECOND
_LOOKS = 20

OnFailure: TypeAlias = Literal["fail", "go-on"]


class FanOutCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of ended members by outcome."""

    members: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0

    def plus(self, other: "FanOutCounts") -> "FanOutCounts":
        return FanOutCounts(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    def words(self) -> str:
        """Describe the members that did not succeed; empty: all succeeded."""
        if self.succeeded == self.members:
            return ""
        said = [f"{count:,} {name}" for name in ("failed", "cancelled", "skipped") if (count := getattr(self, name))]
        missing = self.members - self.succeeded
        return f"{missing:,} of {self.members:,} members did not succeed ({', '.join(said)})"


def count(members: int, states: Iterable[RunState]) -> FanOutCounts:
    """Count the members of one part. Members that are no longer stored count as skipped, as for all dependents."""
    found = dict.fromkeys(RunState, 0)
    for state in states:
        found[state] += 1
    known = {state.value: found[state] for state in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)}
    return FanOutCounts(members=members, **known, skipped=members - sum(known.values()))


class FanOutLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How members are divided into parts. Parts and members are numbered from 0."""

    members: int
    #: The number of members of every part but the last.
    size: int
    #: The maximum number of open parts.
    open: int

    @property
    def parts(self) -> int:
        return -(-self.members // self.size)

    def list_members(self, part: int) -> range:
        return range(part * self.size, min((part + 1) * self.size, self.members))

    def first_parts(self) -> range:
        return range(self.open)


def plan_layout(members: int, at_a_time: int = AT_A_TIME) -> FanOutLayout:
    """Divide members into parts so that open parts have at most ``at_a_time`` members in total."""
    check_whole("atATime", at_a_time, 1, MAX_AT_A_TIME, f"1 to {MAX_AT_A_TIME:,}")
    size = max(1, min(LARGEST_PART, at_a_time // _FEWEST_OPEN))
    parts = -(-members // size)
    return FanOutLayout(members=members, size=size, open=min(at_a_time // size, parts))


class FanOutNames(msgspec.Struct, frozen=True):
    """The ids of the runs of a fan-out."""

    root: RunId

    def gathering(self, part: int) -> RunId:
        return self._derived(part, decode_shard(self.root), "part", part)

    def member(self, number: int, part: int, shard: int | None = None) -> RunId:
        """Return the id of a member, in the shard of its ordering key if it has one."""
        return self._derived(part, decode_shard(self.root) if shard is None else shard, "member", number)

    def clean_up(self) -> RunId:
        return self._derived(0, decode_shard(self.root), "clean-up")

    def _derived(self, part: int, shard: int, *parts: object) -> RunId:
        # One millisecond per part, so that the store keeps runs together that are created together.
        return RunId(derived_id(made_at(self.root) + part * MILLISECOND, shard, self.root, *parts))


def build_fan_out_tag(root: RunId) -> str:
    """Return the tag by which the members of a fan-out are found."""
    return f"fan-out:{root}"


def member_priority(said: int) -> int:
    """Return a member's priority. The highest one is reserved for the runs that manage members."""
    return max(OWN_PRIORITY + 1, said)


def look_after(waited: Micros) -> Micros:
    """Return the delay until the next check of members created ``waited`` ago; it grows with that time."""
    return max(_FIRST_LOOK, min(waited // _LOOKS, _LAST_LOOK))


class FanOutSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """What the root knows about its parts."""

    members: int
    began: Instant
    #: At the last check, no part from this number on existed.
    end: int = 0
    #: The parts before ``end`` that are not gathered.
    open: tuple[int, ...] = ()
    #: The counts of the gathered parts.
    counts: FanOutCounts = FanOutCounts()

    def ahead(self, parts: int) -> Iterator[int]:
        """Yield the parts to check, in order."""
        return chain(self.open, range(self.end, parts))

    def after(self, end: int, gathered: Mapping[int, FanOutCounts]) -> "FanOutSurvey":
        """Return the survey after a check: no part from ``end`` on exists, and those in ``gathered`` are complete."""
        counts = self.counts
        for one in gathered.values():
            counts = counts.plus(one)
        still = tuple(part for part in self.ahead(end) if part not in gathered)
        return msgspec.structs.replace(self, end=end, open=still, counts=counts)


def choose_parts(missing: Sequence[int], part: int, most: int) -> list[int]:
    """Return the order in which the gathering of a part tries to create one of the missing parts.

    Parts that end together begin at different places, so few of them try the same one.
    """
    first = missing[:most]
    start = part % len(first) if first else 0
    return [*first[start:], *first[:start]]
