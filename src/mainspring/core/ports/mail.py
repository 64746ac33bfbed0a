"""The port for sending mail. Servers and addresses come from the settings, never from submitted jobs."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from mainspring.core.model.alerts.channels import MailServer


class Email(msgspec.Struct, frozen=True, kw_only=True):
    sender: str
    to: Sequence[str]
    subject: str
    text: str
    #: The same id when the mail is sent again.
    id: str


class MailRejected(Exception):
    """The server was unavailable or rejected the mail. The message may quote the server, never a password."""

    def __init__(self, message: str, *, for_good: bool) -> None:
        super().__init__(message)
        #: A retry would be rejected, too.
        self.for_good = for_good


class Mail(Protocol):
    async def send(self, server: MailServer, password: str, letter: Email) -> None:
        """Send a mail; returns when the server has accepted it for every address.

        1. Raises ``NotTaken``. The failure is final if the server accepted only some of several addresses: these would
           get the mail twice.
        2. With ``tls``, nothing is sent unencrypted, and the server's certificate is verified.
        """
        ...
