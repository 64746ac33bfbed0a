"""Stands in for FFmpeg: takes a while, makes files smaller, and crashes now and then."""

import time
import zlib
from collections.abc import Callable

FRAME = 4_096
#: Of so many bytes one is kept.
STEPS = {"4K": 1, "1080p": 4, "720p": 9, "480p": 20}


class EncoderCrashed(Exception):
    """It works when it is tried again."""


def encode(raw: bytes, resolution: str, progress: Callable[[int, int], None], seconds_a_frame: float = 0.02) -> bytes:
    step = STEPS[resolution]
    frames = range(0, len(raw), FRAME)
    packer = zlib.compressobj(9)
    encoded = b""
    for number, begin in enumerate(frames, 1):
        encoded += packer.compress(raw[begin : begin + FRAME : step])
        time.sleep(seconds_a_frame)
        progress(number, len(frames))
    return encoded + packer.flush()


def is_flaky(name: str) -> bool:
    """A quarter of all files, and always the same ones: what is seen once can be seen again."""
    return zlib.crc32(name.encode()) % 4 == 0
