"""Styles and scripts: read once, and served under an address that changes with their content, so that browsers may
cache them."""

import gzip
import hashlib
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

_KINDS = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}


class StaticFile(NamedTuple):
    kind: str
    data: bytes
    compressed: bytes


class StaticFiles:
    def __init__(self) -> None:
        found = dict(_walk(resources.files("mainspring.web") / "static", ""))
        digest = hashlib.sha256()
        for name in sorted(found):
            digest.update(name.encode() + b"\0" + found[name])
        #: One version for all files, because they refer to each other.
        self.version = digest.hexdigest()[:12]
        self.files = {
            name: StaticFile(_KINDS[name.rpartition(".")[2]], data, gzip.compress(data, mtime=0))
            for name, data in found.items()
        }


@cache
def static_files() -> StaticFiles:
    return StaticFiles()


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in _KINDS:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found
