"""What an engine carries: hints that a run may be waiting, sealed so that nobody else can make one."""

import hashlib
import hmac

import msgspec

from mainspring.core.model.base.ids import RunId, is_id

_ID, _RANK, _SEAL = 16, 8, 16
#: Of every message, in bytes: id, rank, seal.
MESSAGE = _ID + _RANK + _SEAL


class Hint(msgspec.Struct, frozen=True):
    """This run was waiting in this queue, at this rank. True when it was said; whoever hears of it looks it up."""

    run: RunId
    queue: str
    #: Lower goes first.
    rank: int
    #: For engines that keep things apart by it; no part of the message.
    priority: int = 0
    #: What shares one is to stay in order: a number made of the ordering key. Empty: nothing. For engines with
    #: partitions; no part of the message.
    key: str = ""
    #: Which try it would be, from 1; no part of the message.
    attempt: int = 1
    #: Where it must be taken; empty: anywhere. No part of the message.
    datacenter: str = ""


class Sealer:
    """Makes messages out of hints, and hints out of messages that were made with the same key for the same queue.

    A message is as long as any other and the same for the same run, queue and rank, so an engine can tell a duplicate.
    A seal says that somebody with the key has made it, not that it is new: an old one is found stale in the store.
    """

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.blake2b(key, digest_size=32, person=b"mainspring hints").digest()

    def seal(self, hint: Hint) -> bytes:
        body = bytes.fromhex(hint.run) + hint.rank.to_bytes(_RANK, "big", signed=True)
        return body + self._seal(body, hint.queue)

    def open(self, queue: str, message: bytes) -> Hint | None:
        """None: it is not one of ours."""
        if len(message) != MESSAGE:
            return None
        body = message[: _ID + _RANK]
        if not hmac.compare_digest(message[_ID + _RANK :], self._seal(body, queue)):
            return None
        run = body[:_ID].hex()
        return Hint(RunId(run), queue, rank_of_message(message)) if is_id(run) else None

    def _seal(self, body: bytes, queue: str) -> bytes:
        return hashlib.blake2b(body + queue.encode(), key=self._key, digest_size=_SEAL).digest()


def rank_of_message(message: bytes) -> int:
    """Where it stands in its queue; of a message that was not checked, anything."""
    return int.from_bytes(message[_ID : _ID + _RANK], "big", signed=True)
