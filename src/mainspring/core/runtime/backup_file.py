"""The file of a backup: a ZIP archive with the store's content and, as the last member, its manifest."""

import hashlib
import os
import zipfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec

from mainspring.core.model.base.errors import Conflict, Invalid, StoreUnavailable
from mainspring.core.ports.upkeep.backup import FORMAT, BackupPart, Manifest

MANIFEST = "manifest.json"
PIECE = 1 << 20
#: The fastest level: rows compress well, and a backup should not take longer than the disk requires.
_LEVEL = 1
#: Errors on reading changed bytes; the last one is for unknown compression or encryption.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)


class BackupFileWriter:
    """Writes a temporary file, and renames it when it is complete.

    Only the owner may read it, as it contains payloads.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise Conflict(f"{path} is there already: name a new file")
        self._path = path
        self._part = path.with_name(path.name + ".part")
        try:
            descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise Conflict(
                f"{self._part} is there: another backup is being written, or was broken off; remove it, or name another"
            ) from None
        except OSError as error:
            raise Invalid("FILE", f"{path} cannot be written: {error.strerror}") from error
        self._file = os.fdopen(descriptor, "wb")
        self._archive = zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL)

    def __enter__(self) -> "BackupFileWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            with suppress(OSError, ValueError):
                self._archive.close()
            with suppress(OSError):
                self._file.close()
            self._part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StoreUnavailable(f"{self._path} cannot be written: {error.strerror or error}") from error

    async def add(self, name: str, fill: Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[int]]) -> BackupPart:
        digest, size = hashlib.sha256(), 0
        with self._archive.open(name, "w", force_zip64=True) as member:

            async def write(data: bytes) -> None:
                nonlocal size
                digest.update(data)
                size += len(data)
                member.write(data)

            rows = await fill(write)
        return BackupPart(name=name, bytes=size, sha256=digest.hexdigest(), rows=rows)

    def finish(self, manifest: Manifest) -> int:
        """Store the manifest, sync and rename the file; returns its size."""
        self._archive.writestr(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        self._archive.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return self._path.stat().st_size


class BackupFileReader:
    """Reads a backup. Every problem with its content is a ``Conflict``."""

    def __init__(self, path: Path) -> None:
        try:
            self._archive = zipfile.ZipFile(path)
            content = self._archive.read(MANIFEST)
        except FileNotFoundError:
            raise Invalid("FILE", f"there is no {path}") from None
        except OSError as error:
            raise Invalid("FILE", f"{path} cannot be read: {error.strerror}") from error
        except (*_DAMAGED, KeyError) as error:
            raise Conflict(f"{path} is not a whole backup: {error}") from None
        self._path = path
        self.manifest = _read(path, content)

    async def open(self, name: str) -> AsyncIterator[bytes]:
        """Read a member in pieces. Raises ``Conflict`` at its end if the checksum does not match."""
        [part] = [part for part in self.manifest.parts if part.name == name]
        digest = hashlib.sha256()
        try:
            with self._archive.open(name) as member:
                while piece := member.read(PIECE):
                    digest.update(piece)
                    yield piece
        except (*_DAMAGED, KeyError, OSError) as error:
            raise Conflict(f"{self._path} is damaged: {name}: {error}") from None
        if digest.hexdigest() != part.sha256:
            raise Conflict(f"{self._path} is damaged: {name} is not what was written")


def _read(path: Path, content: bytes) -> Manifest:
    class BackupHeader(msgspec.Struct):
        format: int

    try:
        form = msgspec.json.decode(content, type=BackupHeader).format
        if form > FORMAT:
            raise Conflict(f"{path} has form {form}, this program knows {FORMAT}: upgrade the program")
        if form < FORMAT:
            raise Conflict(f"{path} was made by an older checkout (form {form}): restore it with that checkout")
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise Conflict(f"{path} is not a backup: {error}") from None
