"""SQLite: data centers of processes, and which data center serves each preference order."""

from collections.abc import Sequence
from typing import cast

import apsw
import msgspec

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.cluster.datacenters import preference_of, serving
from mainspring.core.ports.storage.datacenters import Order, Place, PlaceLoad
from mainspring.stores.sqlite.part import Part

_Kept = tuple[int, str, str | None, str | None, Instant | None]
_orders = msgspec.json.Decoder(list[_Kept])
_places = msgspec.json.Decoder(list[tuple[str, int, int, int, Instant | None]])
_loads = msgspec.json.Decoder(list[tuple[str, int, int, Instant | None]])
_words = msgspec.json.Decoder(list[str])


class SqliteDatacenters(Part):
    async def places(self) -> list[Place]:
        rows = _places.decode(await self._reader.read("places", now=self._time.now()))
        return [
            Place(name=name, workers=workers, draining=draining, schedulers=schedulers, seen_at=seen_at)
            for name, workers, draining, schedulers, seen_at in rows
        ]

    async def say_where(self, session: SessionId, datacenter: str, version: str) -> None:
        def say(connection: apsw.Connection, now: Instant) -> None:
            told = (datacenter, version, session)
            connection.execute("UPDATE session SET datacenter = ?, version = ? WHERE id = ?", told)

        await self._work(say)

    async def place_loads(self) -> list[PlaceLoad]:
        rows = _loads.decode(await self._reader.read("place_loads"))
        return [
            PlaceLoad(name=name, queued=queued, running=running, oldest_due=oldest_due)
            for name, queued, running, oldest_due in rows
        ]

    async def orders(self) -> list[Order]:
        found: dict[str, Order] = {}
        for _, requires, to, why, since in _orders.decode(await self._reader.read("orders")):
            preference = preference_of(_words.decode(requires))
            if preference is not None and to is not None and since is not None:
                found[preference.word] = Order(word=preference.word, serving=to, why=why or "", since=since)
        return list(found.values())

    async def serve_orders(self) -> list[Order]:
        kept = _orders.decode(await self._reader.read("orders"))
        if not kept:
            return []
        places = await self.places()
        now = self._time.now()
        seen = {place.name: place.seen_at for place in places if place.seen_at is not None}
        orders = {lane: _order(requires, since, seen, now) for lane, requires, _, _, since in kept}
        mismatched = await self._reader.read("unshared_orders", orders=_pairs(orders), now=now)
        if mismatched != "0" or any(orders[lane].serving != before for lane, _, before, _, _ in kept):
            await self._work(lambda connection, now: _share(connection, kept, orders, now))
        return list({order.word: order for order in orders.values()}.values())


def _order(requires: str, since: Instant | None, seen: dict[str, Instant], now: Instant) -> Order:
    preference = preference_of(_words.decode(requires))
    assert preference is not None
    since = now if since is None else since
    to, why = serving(preference, seen, since, now)
    return Order(word=preference.word, serving=to, why=why, since=since)


def _pairs(orders: dict[int, Order]) -> str:
    return msgspec.json.encode([(lane, order.serving, order.word) for lane, order in orders.items()]).decode()


def _share(connection: apsw.Connection, kept: Sequence[_Kept], orders: dict[int, Order], now: Instant) -> None:
    for lane, _, _, _, _ in kept:
        order = orders[lane]
        before = connection.execute("SELECT serving FROM datacenter_order WHERE lane = ?", (lane,)).get
        connection.execute(
            "INSERT INTO datacenter_order (lane, serving, why, since) VALUES (?1, ?2, ?3, ?4)"
            " ON CONFLICT DO UPDATE SET serving = ?2, why = ?3",
            (lane, order.serving, order.why, now),
        )
        # An order that is served for the first time has not moved.
        if before is not None and before != order.serving:
            why = order.why or f"moved back to {order.serving}"
            connection.execute(_NOTE, {"lane": lane, "why": why})
    for session, own, datacenter, labels in connection.execute(
        "SELECT id, coalesce(lanes, '[0]'), datacenter, labels FROM session WHERE dead = 0 AND kind = 'worker'"
    ).fetchall():
        lanes: list[int] = msgspec.json.decode(cast("str", own), type=list[int])
        words = _words.decode(cast("str", labels))
        served = [
            lane
            for lane, requires, _, _, _ in kept
            if orders[lane].serving == datacenter and set(_words.decode(requires)) - {orders[lane].word} <= set(words)
        ]
        shared = [lane for lane in lanes if lane not in orders] + served
        if sorted(shared) != sorted(lanes):
            text = msgspec.json.encode(shared).decode() if shared != [0] else None
            connection.execute("UPDATE session SET lanes = ? WHERE id = ?", (text, session))


_NOTE = """
UPDATE ledger SET reason = :why
WHERE (reason = '' OR reason LIKE 'moved to %' OR reason LIKE 'moved back to %')
  AND (job_id, scheduled_at, run_id) IN (
    SELECT r.job_id, r.scheduled_at, r.id FROM run r
    WHERE r.state = 'queued' AND r.lane = :lane AND r.job_id IS NOT NULL
    UNION ALL
    SELECT w.job_id, w.scheduled_at, w.id FROM waiting w WHERE w.lane = :lane AND w.job_id IS NOT NULL)
"""
