"""What can go wrong in a conversation with a broker."""


class AmqpError(Exception):
    """The root of them."""


class ConnectionLost(AmqpError):
    """There is no connection any more, or none could be made."""


class Refused(ConnectionLost):
    """The broker has understood, and does not let us in: a wrong password, a virtual host that is not there."""


class ChannelClosed(AmqpError):
    """The broker has closed a channel over something that was asked on it. The connection goes on."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


#: Codes of a channel that was closed.
ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED = 403, 404, 406
