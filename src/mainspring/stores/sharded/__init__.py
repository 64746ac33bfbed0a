"""The sharded store: one store over several PostgreSQL servers (see docs/design/adr/0016)."""

from mainspring.stores.sharded.store import ShardedStore

__all__ = ["ShardedStore"]
