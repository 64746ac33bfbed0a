"""A run's log as one object: JSON lines, compressed in frames.

The object is a gzip file, which any tool unpacks. Each frame is a separate gzip member, so a reader of some lines
unpacks only the frames that contain them. The first member is empty and has the index in its header: the first position
and the length of each frame.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence

import msgspec

from mainspring.core.model.base.instant import isoformat, parse_instant
from mainspring.core.ports.storage.catalog import LogLine

#: The size of a frame before compression.
_FRAME = 64 * 1024
#: gzip, deflate, with an extra field, no time, unknown system; then the length of the extra field, the two letters that
#: name it, and the length of its content.
_HEADER = struct.Struct("<4sIBBH2sH")
_MAGIC = b"\x1f\x8b\x08\x04"
_OURS = b"MS"
_ENTRY = struct.Struct("<QI")
#: An empty compressed text, with its checksum and length.
_EMPTY = b"\x03\x00" + bytes(8)
_AS_GZIP = 16 + zlib.MAX_WBITS


class Damaged(Exception):
    """This is not a log, or a part of it is missing."""


class _Line(msgspec.Struct, frozen=True, rename="camel"):
    """A line as shown by the API."""

    position: int
    time: str
    attempt_number: int
    text: str


class Frame(msgspec.Struct, frozen=True):
    """The location of a frame in the object, and the first position in it."""

    position: int
    first: int
    size: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Line)


def pack(lines: Iterable[LogLine]) -> bytes:
    frames: list[tuple[int, bytes]] = []
    gathered: list[bytes] = []
    position, size = 0, 0
    for line in lines:
        text = _encoder.encode(_Line(line.position, isoformat(line.at), line.attempt, line.text)) + b"\n"
        if gathered and size + len(text) > _FRAME:
            frames.append((position, _compress(b"".join(gathered))))
            gathered, size = [], 0
        if not gathered:
            position = line.position
        gathered.append(text)
        size += len(text)
    if gathered:
        frames.append((position, _compress(b"".join(gathered))))
    index = b"".join(_ENTRY.pack(position, len(frame)) for position, frame in frames)
    header = _HEADER.pack(_MAGIC, 0, 0, 255, 4 + len(index), _OURS, len(index))
    return b"".join((header, index, _EMPTY, *(frame for _, frame in frames)))


def index_size(head: bytes) -> int:
    """Return how many bytes precede the frames. ``head``: at least the first 16 bytes."""
    if len(head) < _HEADER.size:
        raise Damaged("is too short to be a log")
    magic, _, _, _, _, ours, size = _HEADER.unpack_from(head)
    if magic != _MAGIC or ours != _OURS or size % _ENTRY.size:
        raise Damaged("is not a log of ours")
    return int(_HEADER.size + size + len(_EMPTY))


def read_index(head: bytes) -> list[Frame]:
    end = index_size(head)
    if len(head) < end:
        raise Damaged("ends within its index")
    frames, first = [], end
    for position, size in _ENTRY.iter_unpack(head[_HEADER.size : end - len(_EMPTY)]):
        frames.append(Frame(position, first, size))
        first += size
    return frames


def from_position(frames: Sequence[Frame], after: int) -> Sequence[Frame]:
    """Return the frames that may have lines after a position."""
    following = [frame.position for frame in frames[1:]]
    passed = sum(position <= after + 1 for position in following)
    return frames[passed:]


def unpack(frame: bytes) -> list[LogLine]:
    try:
        text = zlib.decompress(frame, _AS_GZIP)
        found = [_decoder.decode(line) for line in text.splitlines()]
    except (zlib.error, msgspec.MsgspecError) as error:
        raise Damaged(f"has a frame that cannot be read: {error}") from error
    return [
        LogLine(position=line.position, at=parse_instant(line.time), attempt=line.attempt_number, text=line.text)
        for line in found
    ]


def _compress(text: bytes) -> bytes:
    compressor = zlib.compressobj(6, zlib.DEFLATED, _AS_GZIP)
    return compressor.compress(text) + compressor.flush()
