"""Numbers of tenants, tasks, queues and label sets: rows carry integers, and each process caches the names."""

from collections.abc import Iterable

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.database import Connection, Database


class UnknownName(StoreUnavailable):
    """A name or number is missing from the cache.

    If the caller had made sure of it before, another server has taken over meanwhile.
    """

    def __init__(self) -> None:
        super().__init__("PostgreSQL: another server has taken over")


class NameCache:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers: dict[tuple[int, str], int] = {}
        self._names: dict[int, str] = {}

    async def assign_numbers(self, wanted: Iterable[tuple[NameKind, str]]) -> None:
        """Make sure that each of these names has a number that ``get_number`` knows."""
        missing = {pair for pair in wanted if pair not in self._numbers}
        if not missing:
            return
        for kind in NameKind:
            names = sorted(name for of, name in missing if of is kind)
            if names:
                await self._database.execute("add_names", kind=int(kind), names=names)
                if kind is NameKind.LABEL_SET:
                    # Before any run requires the new label set: workers with those labels must look for it.
                    await self._database.execute("grant_claim_groups", session=None)
        await self._load()

    def forget(self) -> None:
        self._numbers, self._names = {}, {}

    def get_number(self, kind: NameKind, name: str) -> int:
        try:
            return self._numbers[kind, name]
        except KeyError:
            raise UnknownName from None

    async def find_number(self, kind: NameKind, name: str) -> int | None:
        """Return the number of a name, or None. Asking does not assign a number."""
        if (kind, name) not in self._numbers:
            await self._load()
        return self._numbers.get((kind, name))

    async def find_numbers_containing(self, kind: NameKind, text: str) -> list[int]:
        """Return the numbers of names that contain ``text``, given in lower case; the case of the names is ignored."""
        await self._load()
        return [number for (of, name), number in self._numbers.items() if of is kind and text in name.lower()]

    async def load_names(self, numbers: Iterable[int], connection: "Connection | None" = None) -> None:
        """Make sure that ``get_name`` knows each of these numbers. In a transaction, pass its connection."""
        if not self._names.keys() >= set(numbers):
            await self._load(connection)

    def get_name(self, number: int) -> str:
        try:
            return self._names[number]
        except KeyError:
            raise UnknownName from None

    async def find_datacenters(self, claim_groups: Iterable[int]) -> dict[int, str]:
        """Return the data center that each of these claim groups requires; groups without one are missing."""
        labeled = sorted({claim_group for claim_group in claim_groups if claim_group})
        rows = await self._database.fetch("datacenters_of_claim_groups", claim_groups=labeled) if labeled else []
        return {row["id"]: row["datacenter"] for row in rows if row["datacenter"] is not None}

    async def _load(self, connection: "Connection | None" = None) -> None:
        database = self._database
        rows = await (
            database.fetch("names") if connection is None else connection.fetch(*database.sql["names"].bind())
        )
        for row in rows:
            self._numbers[NameKind(row["kind"]), row["name"]] = row["id"]
            self._names[row["id"]] = row["name"]
