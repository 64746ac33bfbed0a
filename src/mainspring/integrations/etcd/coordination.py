"""The etcd coordinator, through the JSON gateway: a lease per member, a table of owners, and a watch on both."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import msgspec

from mainspring.core.model.base.errors import Fenced, StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import MILLISECOND, SECOND, Micros
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.registry import View
from mainspring.core.runtime.log import get_logger
from mainspring.core.runtime.tasks import cancel_and_wait
from mainspring.integrations.shard_table import decode_owners, encode_owners

_log = get_logger("mainspring.etcd")

_BEFORE_WATCHING_AGAIN: Micros = SECOND // 2
#: gRPC status codes: not found, and unauthenticated.
_NOT_FOUND, _UNAUTHENTICATED = 5, 16

Json = dict[str, Any]


class _RequestRejected(Exception):
    """etcd answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Lease(msgspec.Struct):
    id: str
    ttl: Micros


class EtcdRegistry:
    """Coordinates through one etcd node, and switches to the next if it does not answer.

    etcd counts leases in whole seconds, and grants none shorter than one and a half election timeouts.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        clock: Clock,
        *,
        root: str = "mainspring",
        credentials: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._endpoints = list(endpoints)
        self._clock = clock
        self._root = root
        self._credentials = credentials
        self._tls = tls
        self._token: str | None = None
        self._prefix = ""
        self._listeners: list[Callable[[], None]] = []
        self._leases: dict[SessionId, _Lease] = {}
        self._client: httpx2.AsyncClient | None = None
        self._watching: asyncio.Task[None] | None = None
        self._patience: Micros = 2 * SECOND

    async def open(self, namespace: str) -> None:
        self._prefix = f"{self._root}/{namespace}/"
        # Coordination decides who may act, so it must not pass through a proxy.
        self._client = httpx2.AsyncClient(trust_env=False, timeout=None, verify=self._tls or True)
        self._watching = asyncio.create_task(self._watch(), name="etcd-watch")

    async def close(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            await cancel_and_wait(watching)
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def enter(self, member: SessionId, ttl: Micros) -> None:
        self._patience = max(ttl // 6, 300 * MILLISECOND)
        granted = await self._ask("lease/grant", {"TTL": -(-ttl // SECOND)})
        lease = _Lease(granted["ID"], int(granted["TTL"]) * SECOND)
        await self._ask("kv/put", {"key": self._key(f"members/{member}"), "value": "", "lease": lease.id})
        self._leases[member] = lease

    async def look(self, member: SessionId) -> View:
        lease = self._leases.get(member)
        if lease is None:
            raise Fenced(f"member {member} is not one any more in etcd")
        kept = await self._ask("lease/keepalive", {"ID": lease.id})
        # An expired lease has a TTL of 0; a live one may be renewed with another TTL.
        lease.ttl = int(kept.get("result", {}).get("TTL", 0)) * SECOND
        view = await self._read(lease.ttl) if lease.ttl else None
        if view is None or member not in view.members:
            self._leases.pop(member, None)
            raise Fenced(f"the lease of member {member} in etcd has run out")
        return view

    async def write(self, member: SessionId, owners: Mapping[int, SessionId], version: int) -> bool:
        table, me = self._key("owners"), self._key(f"members/{member}")
        done = await self._ask(
            "kv/txn",
            {
                "compare": [
                    {"key": table, "target": "MOD", "result": "EQUAL", "mod_revision": str(version)},
                    {"key": me, "target": "CREATE", "result": "GREATER", "create_revision": "0"},
                ],
                "success": [{"request_put": {"key": table, "value": _encode(encode_owners(owners))}}],
            },
        )
        return bool(done.get("succeeded", False))

    async def exit(self, member: SessionId) -> None:
        lease = self._leases.pop(member, None)
        if lease is not None:
            with suppress(_RequestRejected):
                await self._ask("lease/revoke", {"ID": lease.id})

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def _read(self, ttl: Micros) -> View:
        # A linearizable read: a majority confirms it after the lease was renewed.
        found = await self._ask("kv/range", self._everything())
        members, owners, version = set(), {}, 0
        for row in found.get("kvs", ()):
            name = base64.b64decode(row["key"]).decode().removeprefix(self._prefix)
            if name == "owners":
                owners, version = decode_owners(base64.b64decode(row.get("value", ""))), int(row["mod_revision"])
            elif name.startswith("members/"):
                members.add(SessionId(int(name.removeprefix("members/"))))
        return View(members=frozenset(members), owners=owners, version=version, lease=ttl)

    def _key(self, name: str) -> str:
        return _encode((self._prefix + name).encode())

    def _everything(self) -> Json:
        """Return the range of all keys with the prefix.

        The prefix ends with a slash, and the next byte after that is a zero.
        """
        return {"key": self._key(""), "range_end": _encode(self._prefix[:-1].encode() + b"0")}

    async def _ask(self, path: str, question: Json) -> Json:
        """Ask each node at most once. A repeated request either changes nothing or is refused."""
        problem: object = "no node is known"
        for _ in self._endpoints:
            try:
                async with asyncio.timeout(self._patience / SECOND):
                    return await self._ask_node(path, question)
            except (httpx2.TransportError, TimeoutError, OSError) as error:
                problem = str(error) or "timeout"
            except _RequestRejected as refused:
                if refused.code == _NOT_FOUND:
                    if path == "lease/revoke":
                        return {}
                    raise Fenced(f"etcd: {refused}") from refused
                if refused.code == _UNAUTHENTICATED:
                    self._token = None
                problem = refused
            # Move the node to the end, so that the watch and the next request start with another node.
            self._endpoints.append(self._endpoints.pop(0))
        raise StoreUnavailable(f"etcd does not answer: {problem}")

    async def _ask_node(self, path: str, question: Json) -> Json:
        if self._client is None:
            raise StoreUnavailable("the connection to etcd is not open")
        url = f"{self._endpoints[0]}/v3/{path}"
        answer = await self._client.post(url, json=question, headers=await self._headers())
        found = _read(answer)
        if answer.status_code != 200 or "error" in found:
            # A request fails with an error in its answer; a stream carries errors in its items.
            error: Json = found["error"] if isinstance(found.get("error"), dict) else found
            code = error.get("code", error.get("grpc_code", 0))
            raise _RequestRejected(code or 0, str(error.get("message", error))[:200])
        return found

    async def _headers(self) -> dict[str, str]:
        if self._credentials is None or self._client is None:
            return {}
        if self._token is None:
            name, password = self._credentials
            answer = await self._client.post(
                f"{self._endpoints[0]}/v3/auth/authenticate", json={"name": name, "password": password}
            )
            if answer.status_code != 200:
                raise _RequestRejected(_UNAUTHENTICATED, "etcd does not know this user and password")
            self._token = str(_read(answer).get("token", ""))
        return {"Authorization": self._token}

    async def _watch(self) -> None:
        while True:
            try:
                async with self._changes() as changes:
                    async for change in changes:
                        if "events" in change:
                            for listener in self._listeners:
                                listener()
            except (httpx2.TransportError, OSError, StoreUnavailable, _RequestRejected) as error:
                _log.debug("watch interrupted", error=str(error))
            await self._clock.sleep(_BEFORE_WATCHING_AGAIN)

    @asynccontextmanager
    async def _changes(self) -> AsyncIterator[AsyncIterator[str]]:
        assert self._client is not None
        url = f"{self._endpoints[0]}/v3/watch"
        question = {"create_request": self._everything()}
        async with self._client.stream("POST", url, json=question, headers=await self._headers()) as answer:
            yield answer.aiter_lines()


def _encode(text: bytes) -> str:
    return base64.b64encode(text).decode()


def _read(answer: httpx2.Response) -> Json:
    try:
        return msgspec.json.decode(answer.content or b"{}", type=Json)
    except msgspec.DecodeError:
        raise _RequestRejected(
            0, f"what answers with status {answer.status_code} at {answer.url.host} is not etcd"
        ) from None
