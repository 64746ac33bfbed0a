"""The store over several PostgreSQL servers: see docs/adr/0016."""

from mainspring.adapters.store.several.store import SeveralStore

__all__ = ["SeveralStore"]
