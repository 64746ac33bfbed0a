"""The SQLite store: one file."""

from mainspring.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
