"""Objects as files in a folder, written with fsync. obstore is not used here, because it does not fsync."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from mainspring.core.model.base.instant import Instant, Micros
from mainspring.core.model.cluster.diagnosis import Finding
from mainspring.core.ports.blobs import Blob, BlobsUnavailable
from mainspring.core.runtime.private_files import examine_modes, make_private_directory
from mainspring.integrations.files.threaded_blobs import ThreadedBlobs

_T = TypeVar("_T")

_LISTED = 1_000
#: Objects never start with a dot, so this cannot be the name of an object.
_UNFINISHED = ".unfinished-"


class FolderBlobs(ThreadedBlobs):
    """Stores objects in an existing folder.

    It is never created here, because it may be the mount point of a missing disk.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))
        self._folder = folder.expanduser()

    async def list(self, prefix: str) -> AsyncIterator[Sequence[Blob]]:
        root = await self._do(self._root)
        files = _list_files(root / prefix)
        while batch := await self._do(lambda: [*islice(files, _LISTED)]):
            yield [Blob(name=file.relative_to(root).as_posix(), size=size, changed_at=at) for file, size, at in batch]

    async def folders(self, prefix: str) -> Sequence[str]:
        return await self._do(lambda: self._folders(prefix))

    async def signed_url(self, name: str, valid_for: Micros) -> str | None:
        return None

    async def examine_modes(self, check: str) -> Finding:
        """Report whether other users of the machine can access the stored objects."""
        return await self._do(lambda: examine_modes(check, self._reachable(), recursive=True))

    def _reachable(self) -> Sequence[Path]:
        """Return the paths that other users can reach: none if the folder itself is private."""
        root = self._root()
        return [root / entry.name for entry in os.scandir(root)] if root.stat().st_mode & 0o077 else []

    async def _do(self, work: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            raise BlobsUnavailable(f"{self.shown}: {error.strerror or error}") from error

    def _root(self) -> Path:
        if not self._folder.is_dir():
            raise BlobsUnavailable(f"{self.shown} is not a folder: make it, or mount what belongs there")
        return self._folder

    def _put(self, name: str, data: bytes) -> None:
        file = self._root() / name
        made = [folder for folder in file.parents if not folder.exists()]
        make_private_directory(file.parent)
        handle, unfinished = tempfile.mkstemp(prefix=_UNFINISHED, dir=file.parent)
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(opened.fileno())
            os.rename(unfinished, file)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished)
            raise
        for folder in {file.parent, *(folder.parent for folder in made)}:
            _sync(folder)

    def _get(self, name: str, first: int, size: int | None) -> bytes | None:
        file = self._root() / name
        try:
            with file.open("rb") as opened:
                opened.seek(first)
                return opened.read() if size is None else opened.read(size)
        except FileNotFoundError:
            return None

    def _delete(self, names: Collection[str]) -> None:
        root = self._root()
        for name in names:
            file = root / name
            file.unlink(missing_ok=True)
            # Remove folders that are now empty. A folder to which another process adds a file stays.
            with suppress(OSError):
                for folder in file.parents:
                    if folder == root:
                        break
                    folder.rmdir()

    def _folders(self, prefix: str) -> Sequence[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self._root() / prefix) if entry.is_dir())
        except FileNotFoundError:
            return []


def _list_files(folder: Path) -> Iterator[tuple[Path, int, Instant]]:
    """Yield all files below a folder with their sizes and modification times.

    The result is lazy, because a day may have millions of files. Files that are deleted meanwhile are skipped.
    """
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _list_files(Path(entry.path))
            elif not entry.name.startswith("."):
                with suppress(FileNotFoundError):
                    about = entry.stat()
                    yield Path(entry.path), about.st_size, Instant(about.st_mtime_ns // 1_000)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
