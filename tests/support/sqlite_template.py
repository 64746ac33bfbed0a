"""An empty SQLite store, created once per process and copied, because creating its tables is slow."""

import tempfile
from pathlib import Path

from mainspring.adapters.clock.system import SystemClock
from mainspring.adapters.store.sqlite import SqliteStore

#: By the number of shards.
_made: dict[int, bytes] = {}


async def copy_empty_store(path: Path, shards: int) -> None:
    """Write an empty store to a path, unless the file exists."""
    if path.exists():  # noqa: ASYNC240 (nothing else waits)
        return
    if shards not in _made:
        with tempfile.TemporaryDirectory() as folder:
            empty = Path(folder) / "empty.db"
            store = SqliteStore(empty, SystemClock(), shards=shards)
            await store.open()
            await store.close()
            _made[shards] = empty.read_bytes()
    path.write_bytes(_made[shards])  # noqa: ASYNC240
