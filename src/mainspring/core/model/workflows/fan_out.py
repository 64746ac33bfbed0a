"""A fan-out: one run of a task for each of many items, made in parts, so many at a time, and counted when they end.

    root ─▶ part 0 ─▶ part 3 ─▶ part 5      as many at the start as may be open at a time;
         ├▶ part 1 ─▶ part 6                the gathering of a part makes one of the first that nobody has made
         └▶ part 2 ─▶ part 4 ─▶ part 7

A part is its members and the run that gathers them, which waits for all of them. Parts are made nearly in order: none
is made while as many before it are missing as may be open. All ids follow from the root's: whatever is done again makes
nothing twice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, TypeAlias

import msgspec

from mainspring.core.model.base.checks import check_whole
from mainspring.core.model.base.ids import RunId, derived_id, made_at, shard_of
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Instant, Micros
from mainspring.core.model.runs.rank import MOST_URGENT
from mainspring.core.model.runs.run import RunState

MAX_MEMBERS = 100_000_000
MAX_AT_A_TIME = 100_000
AT_A_TIME = 10_000
#: Members of one part: what is made in one transaction. Some stores count all of them each time that some have ended.
LARGEST_PART = 500
#: Parts that are open at a time, where members are few enough for that: with one, all would wait for its slowest.
_FEWEST_OPEN = 10
#: Of the few runs that look after members. Behind those in the queue nothing would be known of their progress, and no
#: other part be made, before all of them are done.
OWN_PRIORITY = MOST_URGENT
#: Of so many members, at most, the results are told.
MOST_RESULTS = 1_000

#: How soon it is looked how far the members are, how late, and as a share of the time it has taken so far.
_FIRST_LOOK: Micros = 100 * MILLISECOND
_LAST_LOOK: Micros = 10 * SECOND
_LOOKS = 20

OnFailure: TypeAlias = Literal["fail", "go-on"]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Members that have ended, and how."""

    members: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0

    def plus(self, other: "Counts") -> "Counts":
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})

    def words(self) -> str:
        """What went wrong; nothing: nothing did."""
        if self.succeeded == self.members:
            return ""
        said = [f"{count:,} {name}" for name in ("failed", "cancelled", "skipped") if (count := getattr(self, name))]
        missing = self.members - self.succeeded
        return f"{missing:,} of {self.members:,} members did not succeed ({', '.join(said)})"


def count(members: int, states: Iterable[RunState]) -> Counts:
    """Of one part. Those of which nothing is kept any more count as skipped, as for everybody who waits."""
    found = dict.fromkeys(RunState, 0)
    for state in states:
        found[state] += 1
    known = {state.value: found[state] for state in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)}
    return Counts(members=members, **known, skipped=members - sum(known.values()))


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How members are put into parts. Parts and members are counted from 0."""

    members: int
    #: Members of every part but the last.
    size: int
    #: Parts that are open at a time.
    open: int

    @property
    def parts(self) -> int:
        return -(-self.members // self.size)

    def members_of(self, part: int) -> range:
        return range(part * self.size, min((part + 1) * self.size, self.members))

    def first_parts(self) -> range:
        return range(self.open)


def layout_of(members: int, at_a_time: int = AT_A_TIME) -> Layout:
    """No more than ``at_a_time`` members are in parts that are open."""
    check_whole("atATime", at_a_time, 1, MAX_AT_A_TIME, f"1 to {MAX_AT_A_TIME:,}")
    size = max(1, min(LARGEST_PART, at_a_time // _FEWEST_OPEN))
    parts = -(-members // size)
    return Layout(members=members, size=size, open=min(at_a_time // size, parts))


class Names(msgspec.Struct, frozen=True):
    """The ids of what a fan-out is made of."""

    root: RunId

    def gathering(self, part: int) -> RunId:
        return self._derived(part, shard_of(self.root), "part", part)

    def member(self, number: int, part: int, shard: int | None = None) -> RunId:
        """In the shard of its ordering key, if it has one."""
        return self._derived(part, shard_of(self.root) if shard is None else shard, "member", number)

    def clean_up(self) -> RunId:
        return self._derived(0, shard_of(self.root), "clean-up")

    def _derived(self, part: int, shard: int, *parts: object) -> RunId:
        # A millisecond a part: what is made together lies together in the store.
        return RunId(derived_id(made_at(self.root) + part * MILLISECOND, shard, self.root, *parts))


def tag_of(root: RunId) -> str:
    """The members of a fan-out are found by it."""
    return f"fan-out:{root}"


def member_priority(said: int) -> int:
    """Nothing goes ahead of what is most urgent, so members leave that step to the runs that look after them."""
    return max(OWN_PRIORITY + 1, said)


def look_after(waited: Micros) -> Micros:
    """How long to wait for the next look at members that were made so long ago: seldom, if they take long."""
    return max(_FIRST_LOOK, min(waited // _LOOKS, _LAST_LOOK))


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What the root knows of its parts."""

    members: int
    began: Instant
    #: From this part on none was made when it was last looked …
    end: int = 0
    #: … and these before it are not gathered.
    open: tuple[int, ...] = ()
    #: Of those that are.
    counts: Counts = Counts()

    def ahead(self, parts: int) -> Iterator[int]:
        """Those to look at, in order."""
        return chain(self.open, range(self.end, parts))

    def after(self, end: int, gathered: Mapping[int, Counts]) -> "Survey":
        """None from ``end`` on is made, and these are gathered, too."""
        counts = self.counts
        for one in gathered.values():
            counts = counts.plus(one)
        still = tuple(part for part in self.ahead(end) if part not in gathered)
        return msgspec.structs.replace(self, end=end, open=still, counts=counts)


def choice_of(missing: Sequence[int], part: int, most: int) -> list[int]:
    """In which order the gathering of a part tries to make one of these. Few that end together try the same one."""
    first = missing[:most]
    start = part % len(first) if first else 0
    return [*first[start:], *first[:start]]
