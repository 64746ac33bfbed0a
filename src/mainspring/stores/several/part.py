"""What the parts of the store over several servers share."""

from mainspring.stores.several.servers import Servers


class Part:
    _servers: Servers
