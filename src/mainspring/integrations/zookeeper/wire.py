"""The part of ZooKeeper's protocol that the coordinator needs."""

import struct

import msgspec

#: Request codes.
CREATE, GET_DATA, SET_DATA, GET_CHILDREN, AUTH, CLOSE = 1, 4, 5, 8, 100, -11
#: Transaction ids of messages that do not answer a numbered request.
WATCH_XID, AUTH_XID = -1, -4
#: Error codes.
NO_AUTH, NODE_EXISTS = -102, -110
SESSION_EXPIRED, AUTH_FAILED, SESSION_MOVED = -112, -115, -118
EPHEMERAL = 1
_ALL_RIGHTS = 31


class Stat(msgspec.Struct, frozen=True):
    """The metadata of a node."""

    version: int
    #: The session that owns an ephemeral node; 0 for other nodes.
    owner: int


class Connected(msgspec.Struct, frozen=True):
    #: In milliseconds; 0 if the requested session has expired.
    timeout: int
    session: int
    password: bytes


def connect(last_seen: int, timeout: int, session: int, password: bytes) -> bytes:
    return struct.pack(">iqiq", 0, last_seen, timeout, session) + buffer(password)


def read_connected(frame: bytes) -> Connected:
    _, timeout, session, length = struct.unpack_from(">iiqi", frame)
    return Connected(timeout, session, frame[20 : 20 + length])


def create(path: str, data: bytes, flags: int, *, private: bool = False) -> bytes:
    """Encode the creation of a node. ``private``: only the authenticated user of this connection can access it."""
    access = text("auth") + text("") if private else text("world") + text("anyone")
    return text(path) + buffer(data) + struct.pack(">ii", 1, _ALL_RIGHTS) + access + struct.pack(">i", flags)


def digest(user: str, password: str) -> bytes:
    """Encode a complete authentication request, which has a fixed transaction id."""
    return struct.pack(">iii", AUTH_XID, AUTH, 0) + text("digest") + text(f"{user}:{password}")


def watched(path: str) -> bytes:
    """Encode a read of data or children that sets a watch."""
    return text(path) + b"\x01"


def set_data(path: str, data: bytes, version: int) -> bytes:
    return text(path) + buffer(data) + struct.pack(">i", version)


def read_reply(frame: bytes) -> tuple[int, int, int, bytes]:
    """Return the request's transaction id, the newest change that the server knew, the error code, and the rest."""
    xid, zxid, error = struct.unpack_from(">iqi", frame)
    return xid, zxid, error, frame[16:]


def read_stat(body: bytes) -> Stat:
    # czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeralOwner, …
    version, owner = struct.unpack_from(">32xi8xq", body)
    return Stat(version, owner)


def read_data(body: bytes) -> tuple[bytes, Stat]:
    length = max(0, struct.unpack_from(">i", body)[0])
    return body[4 : 4 + length], read_stat(body[4 + length :])


def read_names(body: bytes) -> list[str]:
    (count,) = struct.unpack_from(">i", body)
    names, offset = [], 4
    for _ in range(count):
        (length,) = struct.unpack_from(">i", body, offset)
        offset += 4 + length
        names.append(body[offset - length : offset].decode())
    return names


def buffer(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def text(words: str) -> bytes:
    return buffer(words.encode())
