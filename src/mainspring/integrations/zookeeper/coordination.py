"""The ZooKeeper coordinator: a session with an ephemeral node per member, and a versioned table of owners."""

from collections.abc import Callable, Mapping, Sequence

from mainspring.core.model.base.errors import Fenced, StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import Micros
from mainspring.core.ports.registry import View
from mainspring.integrations.shard_table import decode_owners, encode_owners
from mainspring.integrations.zookeeper import wire
from mainspring.integrations.zookeeper.session import Access, RequestRejected, Session


class ZooKeeperRegistry:
    """Coordinates through ZooKeeper.

    Every member has its own session, so that stale members of this process expire.
    """

    def __init__(self, nodes: Sequence[tuple[str, int]], access: Access, *, root: str = "mainspring") -> None:
        self._nodes = nodes
        self._access = access
        #: With credentials, only this user can access the created nodes.
        self._private = access.credentials is not None
        self._root = root
        self._path = ""
        self._listeners: list[Callable[[], None]] = []
        self._sessions: dict[SessionId, Session] = {}

    async def open(self, namespace: str) -> None:
        self._path = f"/{self._root}/{namespace}"

    async def close(self) -> None:
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.abandoned()

    async def enter(self, member: SessionId, ttl: Micros) -> None:
        session = Session(self._nodes, ttl, self._tell, self._access)
        try:
            await self._make_parents(session)
            await self._create(session, f"{self._path}/members/{member}", wire.EPHEMERAL)
        except RequestRejected as refused:
            session.abandon()
            raise StoreUnavailable(str(refused)) from refused
        except BaseException:
            session.abandon()
            raise
        self._sessions[member] = session

    async def look(self, member: SessionId) -> View:
        session = self._sessions.get(member)
        if session is None:
            raise Fenced(f"member {member} is not one any more in ZooKeeper")
        me = f"{self._path}/members/{member}"
        try:
            # The write goes to the leader, which knows whether the session is alive. The reads after it are as recent.
            touched, names, table = await session.ask(
                (wire.SET_DATA, wire.set_data(me, b"", -1)),
                (wire.GET_CHILDREN, wire.watched(f"{self._path}/members")),
                (wire.GET_DATA, wire.watched(f"{self._path}/owners")),
            )
        except RequestRejected as refused:
            # The node or one of its parents was deleted; joining again creates it.
            await self._forget(member)
            raise Fenced(f"the node of member {member} is gone: {refused}") from refused
        except Fenced:
            await self._forget(member)
            raise
        if wire.read_stat(touched).owner != session.id:
            await self._forget(member)
            raise Fenced(f"the node of member {member} is another session's")
        owners, stat = wire.read_data(table)
        return View(
            members=frozenset(SessionId(int(name)) for name in wire.read_names(names)),
            owners=decode_owners(owners),
            version=stat.version,
            lease=session.timeout,
        )

    async def write(self, member: SessionId, owners: Mapping[int, SessionId], version: int) -> bool:
        session = self._sessions.get(member)
        if session is None:
            return False
        try:
            # The write uses the member's session: when that has expired, ZooKeeper refuses the write.
            table = wire.set_data(f"{self._path}/owners", encode_owners(owners), version)
            await session.ask((wire.SET_DATA, table))
        except (RequestRejected, Fenced):
            return False
        return True

    async def exit(self, member: SessionId) -> None:
        session = self._sessions.pop(member, None)
        if session is not None:
            await session.close()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    async def _forget(self, member: SessionId) -> None:
        if (session := self._sessions.pop(member, None)) is not None:
            session.abandon()

    async def _make_parents(self, session: Session) -> None:
        """Create the parent nodes. Existing nodes stay unchanged."""
        root = f"/{self._root}"
        for path in (root, self._path, f"{self._path}/members", f"{self._path}/owners"):
            try:
                await self._create(session, path, 0)
            except RequestRejected as refused:
                if refused.code != wire.NODE_EXISTS:
                    raise

    async def _create(self, session: Session, path: str, flags: int) -> None:
        await session.ask((wire.CREATE, wire.create(path, b"", flags, private=self._private)))
