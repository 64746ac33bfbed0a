"""The way out for mail. Where to is in the settings: nobody who submits jobs chooses a server or an address."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.alerts.channels import MailServer


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    sender: str
    to: Sequence[str]
    subject: str
    text: str
    #: The same when it is sent again.
    id: str


class NotTaken(Exception):
    """The server was not there, or did not take it. Its words may stand in the message, no password does."""

    def __init__(self, message: str, *, for_good: bool) -> None:
        super().__init__(message)
        #: Another try would be refused, too.
        self.for_good = for_good


class Mail(Protocol):
    async def send(self, server: MailServer, password: str, letter: Letter) -> None:
        """When it returns the server has it for every address. Raises ``NotTaken``; for good if some of several
        addresses have it, since they would get it twice.

        Nothing is sent in the clear where ``tls`` is asked for, and the server has to prove its name.
        """
        ...
