"""Keeps this scheduler's share of the shards: joins, renews, takes its own shards and releases those of others."""

from collections.abc import Callable

from mainspring.core.model.base.errors import Fenced, StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, Micros
from mainspring.core.model.cluster.shard import choose_shards
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.coordination import Coordinator, Membership
from mainspring.core.ports.wakeups import SHARDS, Wakeups
from mainspring.core.runtime.service import TickingService

DEFAULT_TTL: Micros = 1_500 * MILLISECOND
#: A shorter lease would be used up by the margin and by renewals that take a moment.
SHORTEST_TTL: Micros = 500 * MILLISECOND

_LONGEST_PAUSE: Micros = 250 * MILLISECOND
#: Expired members are looked for when their lease ends, and this often while another member is about to remove them.
_SHORTEST_PAUSE: Micros = 10 * MILLISECOND
_LEAST_MARGIN: Micros = 100 * MILLISECOND
_BEFORE_JOINING_AGAIN: Micros = 20 * MILLISECOND


def _always() -> bool:
    return True


class ShardKeeper(TickingService):
    """Knows which shards this process may act on right now.

    The lease is trusted from before its renewal was sent, on the monotonic clock, minus a margin. As long as ``owned``
    names a shard, the store has not given it to another member. A frozen process finds nothing owned when it wakes.

    A member that joins, leaves or releases shards notifies the others, which then renew at once.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        shards: int,
        wakeups: Wakeups,
        clock: Clock,
        *,
        name: str = "scheduler",
        ttl: Micros = DEFAULT_TTL,
        fit: Callable[[], bool] = _always,
    ) -> None:
        """``fit``: whether this node may own shards, for example according to its clock. If not, it releases all of
        them."""
        super().__init__("shards", clock, wakeups.listen([SHARDS]))
        self._coordinator = coordinator
        self._shards = shards
        self._wakeups = wakeups
        self._label = name
        self._ttl = ttl
        self._fit = fit
        self._pause = min(ttl // 4, _LONGEST_PAUSE)
        self._margin = max(ttl // 10, _LEAST_MARGIN)
        self._member: SessionId | None = None
        self._members: tuple[SessionId, ...] = ()
        self._share: frozenset[int] = frozenset()
        self._owned: dict[int, int] = {}
        self._trusted_until: Micros = 0
        #: How long until the first other member expires unless it renews; for a live one, well after our next renewal.
        self._first_end: Micros | None = None
        self._published: dict[int, int] = {}
        self._unreachable = False
        self._listeners: list[Callable[[], None]] = []

    @property
    def member(self) -> SessionId | None:
        """The id under which this process has joined; a new one after it was fenced."""
        return self._member

    def owned(self) -> dict[int, int]:
        """Return the currently owned shards with their epochs; call again after every wait."""
        if self.clock.monotonic() >= self._trusted_until or not self._fit():
            return {}
        return self._owned

    @property
    def margin(self) -> Micros:
        """How long this process may act on its shards if no renewal is answered from now on."""
        return max(self._trusted_until - self.clock.monotonic(), 0) if self._owned else 0

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call the listener whenever shards were gained or lost."""
        self._listeners.append(listener)

    async def tick(self) -> Micros:
        if not self._fit():
            await self._leave()
            return self._pause
        try:
            await self._keep()
        except Fenced:
            self.log.warning("session expired, joining again", member=self._member)
            self._forget()
            return _BEFORE_JOINING_AGAIN
        except StoreUnavailable as error:
            # The pause does not grow: after an outage, shards must have an owner again within one renewal interval.
            if not self._unreachable:
                self.log.warning("cannot renew the lease", member=self._member, error=str(error))
            self._unreachable = True
            self._publish_owned()
            return self._pause
        if self._unreachable:
            self.log.info("lease renewed again", member=self._member)
        self._unreachable = False
        self._publish_owned()
        return self._pause if self._first_end is None else min(self._pause, max(self._first_end, _SHORTEST_PAUSE))

    async def stop(self) -> None:
        await super().stop()
        await self._leave()

    async def _leave(self) -> None:
        """Stop acting first, then leave: other members may take the shards at once."""
        member = self._member
        self._forget()
        if member is None:
            return
        try:
            await self._coordinator.leave(member)
        except (StoreUnavailable, Fenced) as error:
            self.log.info("left without deregistering, lease expires", member=member, error=str(error))
        else:
            self.log.debug("left", member=member)
        self._wakeups.notify([SHARDS])

    async def _keep(self) -> None:
        member = self._member
        if member is None:
            member = self._member = await self._coordinator.join(self._label, self._ttl)
            self.log.debug("joined", member=member)
            self._wakeups.notify([SHARDS])
        sent = self.clock.monotonic()
        membership = await self._coordinator.renew(member, self._ttl)
        self._learn(member, membership)
        lease = self._ttl if membership.lease is None else min(self._ttl, membership.lease)
        self._trusted_until = sent + lease - self._margin
        await self._give_up(member)
        await self._take(member)

    def _learn(self, member: SessionId, membership: Membership) -> None:
        if membership.members != self._members:
            self._members = membership.members
            # An answer without this member is unexpected; owning nothing is the safe interpretation.
            known = member in self._members
            self._share = choose_shards(member, self._shards, self._members) if known else frozenset()
            self.log.debug("members", member=member, members=list(self._members), share=len(self._share))
        self._owned = dict(membership.owned)
        self._first_end = membership.first_end

    async def _give_up(self, member: SessionId) -> None:
        surplus = sorted(self._owned.keys() - self._share)
        if surplus:
            # Stop acting on them first, then give them up.
            self._owned = {shard: epoch for shard, epoch in self._owned.items() if shard in self._share}
            await self._coordinator.give_up(member, surplus)
            self._wakeups.notify([SHARDS])

    async def _take(self, member: SessionId) -> None:
        missing = sorted(self._share - self._owned.keys())
        if missing:
            self._owned = self._owned | await self._coordinator.take(member, missing)

    def _forget(self) -> None:
        self._member = None
        self._members = ()
        self._share = frozenset()
        self._owned = {}
        self._trusted_until = 0
        self._publish_owned()

    def _publish_owned(self) -> None:
        owned = self.owned()
        if owned == self._published:
            return
        gained, lost = owned.keys() - self._published.keys(), self._published.keys() - owned.keys()
        self._published = dict(owned)
        self.log.debug("shards", member=self._member, owned=len(owned), gained=len(gained), lost=len(lost))
        for listener in self._listeners:
            listener()
