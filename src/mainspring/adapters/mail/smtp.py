"""Mail by SMTP: the standard library's client, in a thread.

It is asked for a few messages a minute at most; a client of our own loop would be one dependency more for nothing.
"""

import asyncio
import smtplib
import ssl
from contextlib import closing, suppress
from email.message import EmailMessage

from mainspring.domain.channels import MailServer
from mainspring.domain.instant import SECOND, Micros
from mainspring.ports.mail import Letter, NotTaken

#: For each step of the conversation.
_TIMEOUT: Micros = 20 * SECOND


class SmtpMail:
    """A ``Mail``. It trusts the certificates that this machine trusts, or those in ``SSL_CERT_FILE``."""

    async def send(self, server: MailServer, password: str, letter: Letter) -> None:
        await asyncio.to_thread(self._send, server, password, letter)

    def _send(self, server: MailServer, password: str, letter: Letter) -> None:
        try:
            with closing(self._connect(server)) as connection:
                if server.tls == "starttls":
                    # Refused by a server that offers none: what is asked for is not done in the clear.
                    connection.starttls(context=ssl.create_default_context())
                if server.user:
                    connection.login(server.user, password)
                refused = connection.send_message(_message(letter), letter.sender, list(letter.to))
                # It is sent, whatever the server says to this.
                with suppress(OSError, smtplib.SMTPException):
                    connection.quit()
        except smtplib.SMTPRecipientsRefused as error:
            raise _refused(error.recipients, letter) from None
        except smtplib.SMTPAuthenticationError as error:
            # Not in the server's words: some repeat what they were given.
            raise NotTaken(f"the mail server did not let us in: {error.smtp_code}", for_good=_lasts(error)) from None
        except smtplib.SMTPResponseException as error:
            words = f"the mail server answered {error.smtp_code} {_text(error.smtp_error)}"
            raise NotTaken(words, for_good=_lasts(error)) from None
        except smtplib.SMTPNotSupportedError as error:
            raise NotTaken(f"the mail server cannot do what is asked for: {error}", for_good=True) from None
        except ssl.SSLCertVerificationError as error:
            raise NotTaken(f"the mail server did not prove its name: {error.verify_message}", for_good=False) from None
        except (OSError, smtplib.SMTPException) as error:
            words = f"the mail server {server.host}:{server.port} did not answer"
            raise NotTaken(f"{words}: {type(error).__name__}: {error}", for_good=False) from None
        if refused:
            raise _refused(refused, letter)

    @staticmethod
    def _connect(server: MailServer) -> smtplib.SMTP:
        seconds = _TIMEOUT / SECOND
        if server.tls == "tls":
            return smtplib.SMTP_SSL(server.host, server.port, timeout=seconds, context=ssl.create_default_context())
        return smtplib.SMTP(server.host, server.port, timeout=seconds)


def _message(letter: Letter) -> EmailMessage:
    message = EmailMessage()
    message["From"] = letter.sender
    message["To"] = ", ".join(letter.to)
    message["Subject"] = letter.subject
    message["Message-ID"] = f"<{letter.id}@{letter.sender.rpartition('@')[2]}>"
    # Nobody's absence is answered to a machine.
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(letter.text)
    return message


def _refused(recipients: dict[str, tuple[int, bytes]], letter: Letter) -> NotTaken:
    words = ", ".join(f"{address}: {code} {_text(said)}" for address, (code, said) in recipients.items())
    lasting = all(500 <= code < 600 for code, _ in recipients.values())
    # The others have it, and would get it again.
    some = len(recipients) < len({*letter.to})
    return NotTaken(f"the mail server refused {words}", for_good=lasting or some)


def _lasts(error: smtplib.SMTPResponseException) -> bool:
    return 500 <= error.smtp_code < 600


def _text(said: bytes | str) -> str:
    return (said.decode("utf-8", "replace") if isinstance(said, bytes) else said)[:200]
