"""Base of the parts of the sharded store."""

from mainspring.stores.sharded.servers import ServerSet


class ShardedMixin:
    _servers: ServerSet
