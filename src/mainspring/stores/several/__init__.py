"""The sharded store: one store over several PostgreSQL servers (see docs/adr/0016)."""

from mainspring.stores.several.store import SeveralStore

__all__ = ["SeveralStore"]
