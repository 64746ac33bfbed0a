"""The store on PostgreSQL."""

from mainspring.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
