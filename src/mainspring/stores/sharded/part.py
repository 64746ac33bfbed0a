"""Base of the parts of the sharded store."""

from mainspring.stores.sharded.servers import Servers


class Part:
    _servers: Servers
