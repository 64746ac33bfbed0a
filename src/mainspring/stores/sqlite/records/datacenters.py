"""SQLite: data centers of processes, and which data center serves each preference order."""

from collections.abc import Sequence

import apsw
import msgspec

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Instant
from mainspring.core.model.cluster.datacenters import find_preference, serving
from mainspring.core.ports.storage.datacenters import DatacenterLoad, DatacenterStatus, PreferenceOrder
from mainspring.stores.sqlite.base import SqliteBase
from mainspring.stores.sqlite.fetch import fetch_rows
from mainspring.stores.sqlite.rows.encoding import encode
from mainspring.stores.sqlite.rows.views import decode_datacenter_loads, decode_datacenters


class _OrderRow(msgspec.Struct, frozen=True):
    """A label set with a preference order; without the other fields if it has not been served yet."""

    label_set: int
    requires: str
    serving: str | None
    why: str | None
    since: Instant | None


_decode_orders = msgspec.json.Decoder(list[_OrderRow]).decode
_decode_words = msgspec.json.Decoder(list[str]).decode


class SqliteDatacenters(SqliteBase):
    async def datacenters(self) -> list[DatacenterStatus]:
        return decode_datacenters(await self._reader.read("datacenters", now=self._time.now()))

    async def set_datacenter(self, session: SessionId, datacenter: str, version: str) -> None:
        def say(connection: apsw.Connection, now: Instant) -> None:
            connection.execute(
                "UPDATE session SET datacenter = :datacenter, version = :version WHERE id = :session",
                {"datacenter": datacenter, "version": version, "session": session},
            )

        await self._write(say)

    async def datacenter_loads(self) -> list[DatacenterLoad]:
        return decode_datacenter_loads(await self._reader.read("datacenter_loads"))

    async def orders(self) -> list[PreferenceOrder]:
        found: dict[str, PreferenceOrder] = {}
        for row in _decode_orders(await self._reader.read("orders")):
            preference = find_preference(_decode_words(row.requires))
            if preference is not None and row.serving is not None and row.since is not None:
                order = PreferenceOrder(word=preference.word, serving=row.serving, why=row.why or "", since=row.since)
                found[preference.word] = order
        return list(found.values())

    async def serve_orders(self) -> list[PreferenceOrder]:
        rows = _decode_orders(await self._reader.read("orders"))
        if not rows:
            return []
        statuses = await self.datacenters()
        now = self._time.now()
        seen_at = {status.name: status.seen_at for status in statuses if status.seen_at is not None}
        orders = {row.label_set: _serve(row, seen_at, now) for row in rows}
        mismatched = await self._reader.read("unshared_orders", orders=_encode_orders(orders), now=now)
        if mismatched != "0" or any(orders[row.label_set].serving != row.serving for row in rows):
            await self._write(lambda connection, now: _store_orders(connection, rows, orders, now))
        return list({order.word: order for order in orders.values()}.values())


def _serve(row: _OrderRow, seen_at: dict[str, Instant], now: Instant) -> PreferenceOrder:
    """Decide which data center serves a preference order now."""
    preference = find_preference(_decode_words(row.requires))
    assert preference is not None
    since = now if row.since is None else row.since
    to, why = serving(preference, seen_at, since, now)
    return PreferenceOrder(word=preference.word, serving=to, why=why, since=since)


def _encode_orders(orders: dict[int, PreferenceOrder]) -> str:
    return encode([(label_set, order.serving, order.word) for label_set, order in orders.items()])


def _store_orders(
    connection: apsw.Connection, rows: Sequence[_OrderRow], orders: dict[int, PreferenceOrder], now: Instant
) -> None:
    """Store which data center serves each preference order, and give its workers the label sets."""
    for row in rows:
        order = orders[row.label_set]
        values = {"label_set": row.label_set, "serving": order.serving, "why": order.why, "now": now}
        before = connection.execute(
            "SELECT serving FROM datacenter_order WHERE claim_group = :label_set", {"label_set": row.label_set}
        ).get
        connection.execute(
            "INSERT INTO datacenter_order (claim_group, serving, why, since) VALUES (:label_set, :serving, :why, :now)"
            " ON CONFLICT DO UPDATE SET serving = :serving, why = :why",
            values,
        )
        # An order that is served for the first time has not moved.
        if before is not None and before != order.serving:
            why = order.why or f"moved back to {order.serving}"
            connection.execute(_NOTE, {"label_set": row.label_set, "why": why})
    for worker in fetch_rows(
        connection,
        _Worker,
        "SELECT id, coalesce(claim_groups, '[0]') AS label_sets, datacenter, labels FROM session"
        " WHERE live = 1 AND kind = 'worker'",
    ):
        current: list[int] = msgspec.json.decode(worker.label_sets, type=list[int])
        labels = set(_decode_words(worker.labels))
        served = [
            row.label_set
            for row in rows
            if orders[row.label_set].serving == worker.datacenter
            and set(_decode_words(row.requires)) - {orders[row.label_set].word} <= labels
        ]
        wanted = [label_set for label_set in current if label_set not in orders] + served
        if sorted(wanted) != sorted(current):
            connection.execute(
                "UPDATE session SET claim_groups = :label_sets WHERE id = :id",
                {"label_sets": encode(wanted) if wanted != [0] else None, "id": worker.id},
            )


class _Worker(msgspec.Struct, frozen=True):
    id: SessionId
    label_sets: str
    datacenter: str
    labels: str


_NOTE = """
UPDATE ledger SET reason = :why
WHERE (reason = '' OR reason LIKE 'moved to %' OR reason LIKE 'moved back to %')
  AND (job_id, scheduled_at, run_id) IN (
    SELECT r.job_id, r.scheduled_at, r.id FROM run r
    WHERE r.state = 'queued' AND r.claim_group = :label_set AND r.job_id IS NOT NULL
    UNION ALL
    SELECT w.job_id, w.scheduled_at, w.id FROM waiting w WHERE w.claim_group = :label_set AND w.job_id IS NOT NULL)
"""
