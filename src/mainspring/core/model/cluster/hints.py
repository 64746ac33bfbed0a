"""Hints in a broker: messages that name a waiting run, authenticated so that only key holders can create them."""

import hashlib
import hmac

import msgspec

from mainspring.core.model.base.ids import RunId, is_id

_ID, _RANK, _SIGNATURE = 16, 8, 16
#: The length of every message in bytes: id, rank, authentication code.
MESSAGE = _ID + _RANK + _SIGNATURE


class Hint(msgspec.Struct, frozen=True):
    """A run that waits in a queue at a rank. The hint may be outdated, so its receiver checks the run in the store."""

    run: RunId
    queue: str
    #: The lowest rank starts first.
    rank: int
    #: For brokers that separate messages by priority; not part of the message.
    priority: int = 0
    #: A number derived from the ordering key: hints with the same key must stay in order. Empty: no order. For brokers
    #: with partitions; not part of the message.
    key: str = ""
    #: The number of the next attempt, from 1; not part of the message.
    attempt: int = 1
    #: The data center that must take the run; empty: any. Not part of the message.
    datacenter: str = ""


class HintCodec:
    """Encodes hints as messages, and decodes messages that were created with the same key for the same queue.

    All messages have the same length. The same run, queue and rank give the same message, so a broker can detect
    duplicates. The authentication code proves that a key holder created the message, not that it is new: the store
    reveals outdated ones.
    """

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.blake2b(key, digest_size=32, person=b"mainspring hints").digest()

    def encode(self, hint: Hint) -> bytes:
        body = bytes.fromhex(hint.run) + hint.rank.to_bytes(_RANK, "big", signed=True)
        return body + self._sign(body, hint.queue)

    def decode(self, queue: str, message: bytes) -> Hint | None:
        """Decode a message; None: it is not authentic."""
        if len(message) != MESSAGE:
            return None
        body = message[: _ID + _RANK]
        if not hmac.compare_digest(message[_ID + _RANK :], self._sign(body, queue)):
            return None
        run = body[:_ID].hex()
        return Hint(RunId(run), queue, read_rank(message)) if is_id(run) else None

    def _sign(self, body: bytes, queue: str) -> bytes:
        return hashlib.blake2b(body + queue.encode(), key=self._key, digest_size=_SIGNATURE).digest()


def read_rank(message: bytes) -> int:
    """Return the rank in a message. The value is arbitrary if the message was not authenticated."""
    return int.from_bytes(message[_ID : _ID + _RANK], "big", signed=True)
