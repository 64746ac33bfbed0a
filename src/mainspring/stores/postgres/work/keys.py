"""Idempotency keys: a tenant uses each one once, for a run or for a job."""

import hashlib
from collections.abc import Collection, Sequence

import msgspec

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.runs.new_run import Idempotency
from mainspring.core.store import KEYS_KEPT
from mainspring.stores.postgres.database import Connection
from mainspring.stores.postgres.names import NameKind
from mainspring.stores.postgres.work.unique_runs import UniqueRunMixin

RUN, JOB = 1, 2
#: How often a key is requested again while it is being deleted or freed.
_ROUNDS = 5


class KeyRequest(msgspec.Struct, frozen=True):
    """A key to be used for a new run or job."""

    tenant: int
    key: bytes
    id: str
    fingerprint: bytes

    @property
    def place(self) -> tuple[int, bytes]:
        return self.tenant, self.key


class KeyUse(msgspec.Struct, frozen=True):
    """The run or job that a key was used for before."""

    id: str
    kind: int
    fingerprint: bytes


def build_key_request(tenant: int, asked: Idempotency, made: str) -> KeyRequest:
    return KeyRequest(tenant, _hash(asked.key), made, asked.fingerprint)


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class IdempotencyKeyMixin(UniqueRunMixin):
    async def used_keys(self, tenant: str, keys: Collection[str]) -> set[str]:
        number = await self._names.find(NameKind.TENANT, tenant)
        if number is None:
            return set()
        by_hash = {_hash(key): key for key in keys}
        found = await self._db.fetch("used_keys", [number] * len(by_hash), list(by_hash))
        return {by_hash[row["key"]] for row in found if row["counts"]}

    async def _take_keys(
        self, connection: Connection, wanted: Sequence[KeyRequest], kind: int
    ) -> tuple[list[KeyUse | None], list[KeyRequest]]:
        """Take keys, each for the first run or job of the batch that wants it.

        Return the earlier use of each wanted key, or None; and the keys that this call has taken.
        """
        first: dict[tuple[int, bytes], KeyRequest] = {}
        for want in wanted:
            first.setdefault(want.place, want)
        used: dict[tuple[int, bytes], KeyUse] = {}
        taken: list[KeyRequest] = []
        left = first
        for _ in range(_ROUNDS):
            if not left:
                break
            rows = await connection.fetch(*self._db.sql["take_keys"].bind(*_columns(left), kind, KEYS_KEPT))
            new = [left[row["tenant"], row["key"]] for row in rows]
            left = _without(left, new)
            if left:
                found, free = await self._look_at_keys(connection, left, kind)
                used |= found
                new += free
                left = {place: want for place, want in _without(left, free).items() if place not in found}
            taken += new
        if left:
            raise StoreUnavailable("an idempotency key is used by too many at once")
        answers: list[KeyUse | None] = []
        for want in wanted:
            winner = first[want.place]
            before = used.get(want.place)
            if before is None and winner is not want:
                before = KeyUse(winner.id, kind, winner.fingerprint)
            answers.append(before)
        return answers, taken

    async def _look_at_keys(
        self, connection: Connection, wanted: dict[tuple[int, bytes], KeyRequest], kind: int
    ) -> tuple[dict[tuple[int, bytes], KeyUse], list[KeyRequest]]:
        """Return the earlier uses of keys. Keys that have expired, or whose run or job is gone, are taken."""
        places = [list(column) for column in zip(*sorted(wanted), strict=True)]
        await connection.fetch(*self._db.sql["lock_keys"].bind(*places))
        used: dict[tuple[int, bytes], KeyUse] = {}
        free: list[KeyRequest] = []
        for row in await connection.fetch(*self._db.sql["used_keys"].bind(*places)):
            place = (row["tenant"], row["key"])
            if row["counts"]:
                used[place] = KeyUse(row["id"], row["kind"], row["fingerprint"])
            else:
                free.append(wanted[place])
        await self._use_keys(connection, free, kind)
        return used, free

    async def _free_keys(self, connection: Connection, wanted: Sequence[KeyRequest]) -> None:
        """Free keys that were taken for something that was not made after all."""
        if wanted:
            await connection.execute(
                *self._db.sql["free_keys"].bind([want.tenant for want in wanted], [want.key for want in wanted])
            )

    async def _use_keys(self, connection: Connection, wanted: Sequence[KeyRequest], kind: int) -> None:
        """Use keys that this transaction has locked."""
        if wanted:
            columns = _columns({want.place: want for want in wanted})
            await connection.execute(*self._db.sql["use_keys"].bind(*columns, kind, KEYS_KEPT))


def _columns(wanted: dict[tuple[int, bytes], KeyRequest]) -> list[list[object]]:
    ordered = [wanted[place] for place in sorted(wanted)]
    return [
        [want.tenant for want in ordered],
        [want.key for want in ordered],
        [want.id for want in ordered],
        [want.fingerprint for want in ordered],
    ]


def _without(
    wanted: dict[tuple[int, bytes], KeyRequest], gone: Sequence[KeyRequest]
) -> dict[tuple[int, bytes], KeyRequest]:
    places = {want.place for want in gone}
    return {place: want for place, want in wanted.items() if place not in places}
