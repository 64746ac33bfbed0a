"""Errors of the AMQP client."""


class AmqpError(Exception):
    """The base class of AMQP errors."""


class ConnectionLost(AmqpError):
    """The connection was lost or could not be opened."""


class ConnectionRejected(ConnectionLost):
    """The broker rejected the connection: a wrong password, or a virtual host that does not exist."""


class ChannelClosed(AmqpError):
    """The broker closed a channel because of a request on it. The connection stays open."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


#: Reply codes of a closed channel.
ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED = 403, 404, 406
