"""The store on PostgreSQL."""

from mainspring.adapters.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
