"""Frames of AMQP 0-9-1. Frequent frames are encoded and decoded here, all others by pamqp.

frame    kind (1) · channel (2) · size (4) · payload · 0xCE
message  a method, then a header with the size of its body, then the body in as many frames as it needs
"""

import struct

from pamqp import commands, frame
from pamqp.base import Frame
from pamqp.header import ContentHeader

from mainspring.integrations.rabbitmq.errors import ConnectionLost

PROTOCOL = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
#: Methods as class and number, in the encoding of a frame.
DELIVER, ACK, NACK = 0x003C003C, 0x003C0050, 0x003C0078
#: The largest frame size that we negotiate, and the largest body that is kept, because hints are small.
FRAME_MAX = 131_072
MOST_KEPT = 65_536

_HEAD = struct.Struct(">BHI")
_INDEX = struct.Struct(">I")
_TAG = struct.Struct(">Q")
_CONFIRM = struct.Struct(">QB")
_SIZE = struct.Struct(">4xQ")
_SETTLE = struct.Struct(">BHIIQBB")
_END = 0xCE
_END_BYTE = b"\xce"
_BEAT = _HEAD.pack(HEARTBEAT, 0, 0) + _END_BYTE
_REJECT = 0x003C005A


class FrameReader:
    """Splits received data into frames, and buffers an incomplete frame."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Return the kind, channel and payload of each complete frame."""
        if self._rest:
            data = self._rest + data
        if data[:4] == b"AMQP":
            raise ConnectionLost("the broker speaks another version of AMQP")
        found, start, length = [], 0, len(data)
        while length - start >= 8:
            kind, channel, size = _HEAD.unpack_from(data, start)
            if size > FRAME_MAX:
                raise ConnectionLost("what came is not AMQP")
            end = start + 7 + size
            if end >= length:
                break
            if data[end] != _END:
                raise ConnectionLost("what came is not AMQP")
            found.append((kind, channel, data[start + 7 : end]))
            start = end + 1
        self._rest = data[start:]
        return found


def read_index(payload: bytes) -> int:
    """Return the index of the method."""
    return int(_INDEX.unpack_from(payload)[0])


def read_method(payload: bytes) -> Frame:
    """Decode an infrequent method with pamqp."""
    _, _, method = frame.unmarshal(_HEAD.pack(METHOD, 0, len(payload)) + payload + _END_BYTE)
    assert isinstance(method, Frame)
    return method


def read_deliver(payload: bytes) -> int:
    """Return the delivery tag, which follows the consumer tag."""
    return int(_TAG.unpack_from(payload, 5 + payload[4])[0])


def read_confirm(payload: bytes) -> tuple[int, bool]:
    """Return the tag, and whether it covers all earlier tags."""
    tag, bits = _CONFIRM.unpack_from(payload, 4)
    return tag, bool(bits & 1)


def read_size(payload: bytes) -> int:
    """Return the size of the body that follows a header."""
    return int(_SIZE.unpack_from(payload)[0])


def method_frame(channel: int, method: Frame) -> bytes:
    return frame.marshal(method, channel)


def header_frame(channel: int, size: int, properties: commands.Basic.Properties) -> bytes:
    return frame.marshal(ContentHeader(body_size=size, properties=properties), channel)


def build_body_frame(channel: int, size: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after a body. An empty body needs no frame, because its header has the size 0."""
    assert size <= FRAME_MAX - 8, "what is larger would need several frames"
    return (_HEAD.pack(BODY, channel, size), _END_BYTE) if size else (b"", b"")


def ack_frame(channel: int, tag: int, *, multiple: bool) -> bytes:
    return _SETTLE.pack(METHOD, channel, 13, ACK, tag, multiple, _END)


def nack_frame(channel: int, tag: int) -> bytes:
    """Return a message to its queue for other consumers."""
    return _SETTLE.pack(METHOD, channel, 13, NACK, tag, 2, _END)


def reject_frame(channel: int, tag: int) -> bytes:
    """Reject a message to the dead letters."""
    return _SETTLE.pack(METHOD, channel, 13, _REJECT, tag, 0, _END)


def heartbeat_frame() -> bytes:
    return _BEAT
