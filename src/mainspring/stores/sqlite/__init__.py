"""The store in one SQLite file."""

from mainspring.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
