"""A folder that stands in for an object store: names and bytes, written whole or not at all."""

import os
from pathlib import Path
from uuid import uuid4

FOLDER = Path(os.environ.get("VIDEO_BUCKET", "video_encoding.bucket"))


def write(name: str, data: bytes) -> str:
    """Writing the same again changes nothing, so an attempt that is repeated does no harm."""
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{uuid4().hex}.part")
    unfinished.write_bytes(data)
    unfinished.replace(path)
    return name


def read(name: str) -> bytes:
    return (FOLDER / name).read_bytes()
