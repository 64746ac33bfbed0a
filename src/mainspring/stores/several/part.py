"""Base of the parts of the sharded store."""

from mainspring.stores.several.servers import Servers


class Part:
    _servers: Servers
