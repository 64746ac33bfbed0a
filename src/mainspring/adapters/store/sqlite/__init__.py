"""The store in one SQLite file."""

from mainspring.adapters.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
