"""Sends mail with the standard library's SMTP client on a thread.

There are only a few messages a minute, so an asynchronous client would be a needless dependency.
"""

import asyncio
import smtplib
import ssl
import unicodedata
from contextlib import closing, suppress
from email.charset import QP, Charset
from email.header import Header
from email.message import Message

import msgspec

from mainspring.core.model.alerts.channels import MailServer
from mainspring.core.model.base.instant import SECOND, Micros
from mainspring.core.ports.mail import Email, MailRejected

#: The time limit of each step of the conversation.
_TIMEOUT: Micros = 20 * SECOND


class SmtpMail:
    """The implementation of ``Mail``. It trusts the certificates of this machine, or those in ``SSL_CERT_FILE``."""

    async def send(self, server: MailServer, password: str, letter: Email) -> None:
        await asyncio.to_thread(self._send, server, password, letter)

    def _send(self, server: MailServer, password: str, letter: Email) -> None:
        message = build_message(letter)
        try:
            with closing(self._connect(server)) as connection:
                if server.tls == "starttls":
                    # Fails if the server does not offer STARTTLS, so that nothing is sent unencrypted.
                    connection.starttls(context=ssl.create_default_context())
                if server.user:
                    connection.login(server.user, password)
                refused = connection.sendmail(letter.sender, list(letter.to), message)
                # The message is sent, so errors of the closing command do not matter.
                with suppress(OSError, smtplib.SMTPException):
                    connection.quit()
        except smtplib.SMTPRecipientsRefused as error:
            raise _explain_rejection(error.recipients, letter) from None
        except smtplib.SMTPAuthenticationError as error:
            # The server's message is omitted, because some servers repeat the credentials.
            raise MailRejected(
                f"the mail server did not let us in: {error.smtp_code}", for_good=_is_permanent(error)
            ) from None
        except smtplib.SMTPResponseException as error:
            words = f"the mail server answered {error.smtp_code} {_decode(error.smtp_error)}"
            raise MailRejected(words, for_good=_is_permanent(error)) from None
        except smtplib.SMTPNotSupportedError as error:
            raise MailRejected(f"the mail server cannot do what is asked for: {error}", for_good=True) from None
        except ssl.SSLCertVerificationError as error:
            raise MailRejected(
                f"the mail server did not prove its name: {error.verify_message}", for_good=False
            ) from None
        except (OSError, smtplib.SMTPException) as error:
            words = f"the mail server {server.host}:{server.port} did not answer"
            raise MailRejected(f"{words}: {type(error).__name__}: {error}", for_good=False) from None
        if refused:
            raise _explain_rejection(refused, letter)

    @staticmethod
    def _connect(server: MailServer) -> smtplib.SMTP:
        seconds = _TIMEOUT / SECOND
        if server.tls == "tls":
            return smtplib.SMTP_SSL(server.host, server.port, timeout=seconds, context=ssl.create_default_context())
        return smtplib.SMTP(server.host, server.port, timeout=seconds)


def build_message(letter: Email) -> bytes:
    """Return the message as it is sent. One that cannot be built is replaced by one that says so."""
    try:
        return _build(letter)
    except Exception as error:
        words = f"An alert could not be written as an e-mail: {type(error).__name__}.\nIt is run {letter.id}.\n"
        try:
            return _build(msgspec.structs.replace(letter, subject="Mainspring: unreadable alert", text=words))
        except Exception:
            raise MailRejected("the message cannot be built: its addresses are not valid", for_good=True) from None


def _build(letter: Email) -> bytes:
    """Build with the legacy policy, because the current one decodes encoded words in a value, including line
    breaks.

    Every header is written as one encoded word, or is an address of the settings' form in ASCII.
    """
    text = Charset("utf-8")
    text.body_encoding = QP
    message = Message()
    message["MIME-Version"] = "1.0"
    message["Content-Type"] = "text/plain"
    message.set_payload(letter.text, text)
    message["From"] = _check_address(letter.sender)
    message["To"] = ", ".join(_check_address(address) for address in letter.to)
    message["Subject"] = Header(_one_line(letter.subject), "utf-8", header_name="Subject").encode()
    message["Message-ID"] = f"<{_one_line(letter.id)}@{letter.sender.rpartition('@')[2]}>"
    # Suppresses automatic replies.
    message["Auto-Submitted"] = "auto-generated"
    return message.as_bytes(policy=message.policy.clone(linesep="\r\n"))


def _one_line(text: str) -> str:
    """Replace control characters and line separators, which are not allowed in headers."""
    return "".join(" " if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") else each for each in text)


def _check_address(address: str) -> str:
    # An encoded word is not an address, although it may consist of valid characters.
    if not address.isascii() or not address.isprintable() or "=?" in address or " " in address:
        raise ValueError("not an address")
    return address


def _explain_rejection(recipients: dict[str, tuple[int, bytes]], letter: Email) -> MailRejected:
    words = ", ".join(f"{address}: {code} {_decode(said)}" for address, (code, said) in recipients.items())
    lasting = all(500 <= code < 600 for code, _ in recipients.values())
    # Other recipients have received the message, and a retry would send it to them again.
    some = len(recipients) < len({*letter.to})
    return MailRejected(f"the mail server refused {words}", for_good=lasting or some)


def _is_permanent(error: smtplib.SMTPResponseException) -> bool:
    return 500 <= error.smtp_code < 600


def _decode(said: bytes | str) -> str:
    return (said.decode("utf-8", "replace") if isinstance(said, bytes) else said)[:200]
