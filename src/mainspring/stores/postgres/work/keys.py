"""Idempotency keys: a tenant uses each one once, for a run or for a job."""

import hashlib
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.runs.new_run import Idempotency
from mainspring.core.store import KEYS_KEPT
from mainspring.stores.postgres.codes import NameKind
from mainspring.stores.postgres.columns import columns
from mainspring.stores.postgres.database import Connection
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
    def tenant_key(self) -> tuple[int, bytes]:
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
        number = await self._names.find_number(NameKind.TENANT, tenant)
        if number is None:
            return set()
        by_hash = {_hash(key): key for key in keys}
        found = await self._db.fetch("used_idempotency_keys", tenants=[number] * len(by_hash), keys=list(by_hash))
        return {by_hash[row["key"]] for row in found if row["counts"]}

    async def _take_keys(
        self, connection: Connection, wanted: Sequence[KeyRequest], kind: int
    ) -> tuple[list[KeyUse | None], list[KeyRequest]]:
        """Take keys, each for the first run or job of the batch that wants it.

        Return the earlier use of each wanted key, or None; and the keys that this call has taken.
        """
        first: dict[tuple[int, bytes], KeyRequest] = {}
        for request in wanted:
            first.setdefault(request.tenant_key, request)
        used: dict[tuple[int, bytes], KeyUse] = {}
        taken: list[KeyRequest] = []
        left = first
        for _ in range(_ROUNDS):
            if not left:
                break
            rows = await connection.fetch(
                *self._db.sql["take_idempotency_keys"].bind(**_key_columns(left), kind=kind, kept=KEYS_KEPT)
            )
            new = [left[row["tenant"], row["key"]] for row in rows]
            left = _without(left, new)
            if left:
                found, free = await self._replace_expired_keys(connection, left, kind)
                used |= found
                new += free
                left = {key: request for key, request in _without(left, free).items() if key not in found}
            taken += new
        if left:
            raise StoreUnavailable("an idempotency key is used by too many at once")
        answers: list[KeyUse | None] = []
        for request in wanted:
            winner = first[request.tenant_key]
            before = used.get(request.tenant_key)
            if before is None and winner is not request:
                before = KeyUse(winner.id, kind, winner.fingerprint)
            answers.append(before)
        return answers, taken

    async def _replace_expired_keys(
        self, connection: Connection, wanted: dict[tuple[int, bytes], KeyRequest], kind: int
    ) -> tuple[dict[tuple[int, bytes], KeyUse], list[KeyRequest]]:
        """Return the earlier uses of keys. Keys that have expired, or whose run or job is gone, are taken."""
        keys = columns(sorted(wanted), "tenants", "keys")
        await connection.fetch(*self._db.sql["lock_idempotency_keys"].bind(**keys))
        used: dict[tuple[int, bytes], KeyUse] = {}
        free: list[KeyRequest] = []
        for row in await connection.fetch(*self._db.sql["used_idempotency_keys"].bind(**keys)):
            key = (row["tenant"], row["key"])
            if row["counts"]:
                used[key] = KeyUse(row["id"], row["kind"], row["fingerprint"])
            else:
                free.append(wanted[key])
        await self._use_keys(connection, free, kind)
        return used, free

    async def _free_keys(self, connection: Connection, wanted: Sequence[KeyRequest]) -> None:
        """Free keys that were taken for something that was not made after all."""
        if wanted:
            await connection.execute(
                *self._db.sql["free_idempotency_keys"].bind(
                    tenants=[request.tenant for request in wanted], keys=[request.key for request in wanted]
                )
            )

    async def _use_keys(self, connection: Connection, wanted: Sequence[KeyRequest], kind: int) -> None:
        """Use keys that this transaction has locked."""
        if wanted:
            keys = _key_columns({request.tenant_key: request for request in wanted})
            await connection.execute(*self._db.sql["replace_idempotency_keys"].bind(**keys, kind=kind, kept=KEYS_KEPT))


def _key_columns(wanted: dict[tuple[int, bytes], KeyRequest]) -> dict[str, Any]:
    ordered = [
        (*key, request.id, request.fingerprint) for key, request in sorted(wanted.items(), key=lambda item: item[0])
    ]
    return columns(ordered, "tenants", "keys", "ids", "fingerprints")


def _without(
    wanted: dict[tuple[int, bytes], KeyRequest], gone: Sequence[KeyRequest]
) -> dict[tuple[int, bytes], KeyRequest]:
    keys = {request.tenant_key for request in gone}
    return {key: request for key, request in wanted.items() if key not in keys}
