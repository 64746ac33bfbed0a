"""What the parts of the store over several servers share."""

from mainspring.adapters.store.several.servers import Servers


class Part:
    _servers: Servers
