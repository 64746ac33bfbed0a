"""Where processes run, and which data center serves each preference."""

from collections.abc import Sequence

import asyncpg

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.cluster.datacenters import find_preference, serving
from mainspring.core.ports.storage.datacenters import DatacenterLoad, DatacenterStatus, PreferenceOrder
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.mixin import PostgresMixin
from mainspring.stores.postgres.rows import build_label_set


class DataCenterMixin(PostgresMixin):
    async def datacenters(self) -> list[DatacenterStatus]:
        return [_place(row) for row in await self._db.fetch("datacenters")]

    async def set_datacenter(self, session: SessionId, datacenter: str, version: str) -> None:
        await self._db.execute("set_datacenter", session=session, datacenter=datacenter, version=version)

    async def datacenter_loads(self) -> list[DatacenterLoad]:
        return [
            DatacenterLoad(name=row["name"], queued=row["queued"], running=row["running"], oldest_due=row["oldest_due"])
            for row in await self._db.fetch("datacenter_loads")
        ]

    async def orders(self) -> list[PreferenceOrder]:
        found: dict[str, PreferenceOrder] = {}
        for row in await self._db.fetch("orders"):
            preference = find_preference(row["requires"].split(","))
            if preference is not None and row["serving"] is not None:
                word = preference.word
                found[word] = PreferenceOrder(word=word, serving=row["serving"], why=row["why"], since=row["since"])
        return list(found.values())

    async def serve_orders(self) -> list[PreferenceOrder]:
        rows = await self._db.fetch("orders")
        if not rows:
            return []
        now = (await self._db.fetch("now"))[0][0]
        seen = {place.name: place.seen_at for place in await self.datacenters() if place.seen_at is not None}
        orders = {row["claim_group"]: _order(row, seen, now) for row in rows}
        moving = [row for row in rows if row["serving"] != orders[row["claim_group"]].serving]
        if moving:
            await self._db.transaction(lambda connection: self._move(connection, moving, orders))
        claim_groups = list(orders)
        besides = [_besides(row["requires"], orders[row["claim_group"]].word) for row in rows]
        await self._db.execute(
            "share_orders",
            claim_groups=claim_groups,
            servings=[order.serving for order in orders.values()],
            other_labels=besides,
        )
        return list({order.word: order for order in orders.values()}.values())

    async def _move(
        self, connection: Connection, moving: Sequence[asyncpg.Record], orders: dict[int, PreferenceOrder]
    ) -> None:
        sql = self._db.sql
        claim_groups = [row["claim_group"] for row in moving]
        serves, whys = (
            [orders[claim_group].serving for claim_group in claim_groups],
            [orders[claim_group].why for claim_group in claim_groups],
        )
        moved = {
            row["claim_group"]
            for row in await connection.fetch(
                *sql["move_orders"].bind(claim_groups=claim_groups, servings=serves, reasons=whys)
            )
        }
        # A preference that is served for the first time has not moved.
        for row in moving:
            if row["claim_group"] in moved and row["serving"] is not None:
                order = orders[row["claim_group"]]
                turns = [
                    turn["id"]
                    for turn in await connection.fetch(
                        *sql["claim_groups_of_label_set"].bind(claim_group=row["claim_group"])
                    )
                ]
                why = order.why or f"moved back to {order.serving}"
                await connection.execute(
                    *sql["record_preference_move"].bind(claim_groups=[row["claim_group"], *turns], reason=why)
                )


def _place(row: asyncpg.Record) -> DatacenterStatus:
    return DatacenterStatus(
        name=row["name"],
        workers=row["workers"],
        draining=row["draining"],
        schedulers=row["schedulers"],
        seen_at=row["seen_at"],
    )


def _order(row: asyncpg.Record, seen: dict[str, int], now: int) -> PreferenceOrder:
    preference = find_preference(row["requires"].split(","))
    assert preference is not None
    since = now if row["since"] is None else row["since"]
    to, why = serving(preference, seen, since, now)
    return PreferenceOrder(word=preference.word, serving=to, why=why, since=since)


def _besides(requires: str, word: str) -> str:
    """Return the other labels that are required; an empty text is an empty set."""
    return build_label_set(tuple(other for other in requires.split(",") if other != word))
