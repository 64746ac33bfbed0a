"""Delivery of alerts to an HTTP server that stands in for Slack, PagerDuty and a webhook, and to a mail server."""

import hashlib
import hmac
import unicodedata
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.header import decode_header
from pathlib import Path

import msgspec
import pytest
from jsonschema_rs import validate

from mainspring.core.model.alerts.alert_messages import Alert, AlertProblem, AlertStage, Message
from mainspring.core.model.alerts.notification_rules import read_notifications
from mainspring.core.model.base.instant import SECOND
from mainspring.core.model.runs.handler_errors import GiveUp
from mainspring.core.model.runs.reserved import NOTIFICATION
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.mail import Email, MailRejected
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from mainspring.core.worker.handler import AsyncHandler
from mainspring.core.worker.reporting.capture import capture
from mainspring.integrations.egress.guarded import GuardedEgress
from mainspring.integrations.smtp.mail import SmtpMail, build_message
from tests.support.builders import a_held_run
from tests.support.notification_receivers import Receiver, mail_server, receiving
from tests.support.notification_schemas import PAGERDUTY, SLACK
from tests.worker.test_http_calls import NOW, a_keyring

ENTRY = AlertProblem(
    problem="p1",
    stage=AlertStage.DEAD,
    tenant="default",
    name="nightly",
    task="charge",
    error="ValueError: ü <b>",
    at=NOW,
)
OVER = msgspec.structs.replace(ENTRY, stage=AlertStage.RECOVERED, first=False)


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    yield
    masks.forget()
    capture.show()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def held(
    *entries: AlertProblem, channel: str = "ops", owner: str = "", to: str = "", tenant: str = "default"
) -> HeldRun:
    message = Message(channel, Alert(entries=entries), owner, to)
    return msgspec.structs.replace(a_held_run(), payload=msgspec.json.encode(message), tenant=tenant)


async def deliver(words: str, run: HeldRun, **secrets: str) -> None:
    rules = read_notifications({"ops": tuple(words.split())}, {}, {})
    tasks = BuiltinTasks(http=False, keyring=a_keyring(**secrets), notifications=rules, mail=SmtpMail())
    handler = tasks.handlers(lambda: GuardedEgress(["127.0.0.1"]), now=lambda: NOW)[NOTIFICATION]
    assert isinstance(handler, AsyncHandler)
    await handler.invoke(run)


async def test_slack_receives_one_message_at_its_secret_url(receiver: Receiver) -> None:
    await deliver("slack secret=SLACK_URL", held(ENTRY, OVER), SLACK_URL=f"{receiver.url}/services/T/B/x")
    [body] = receiver.at("/services/T/B/x")
    validate(SLACK, body)
    assert body["text"].startswith("*Mainspring: 1 problem, 1 over*\nnightly is dead")
    assert "ü &lt;b&gt;" in body["text"]


async def test_pagerduty_receives_trigger_and_resolve_under_one_key(receiver: Receiver) -> None:
    words = f"pagerduty secret=PAGER_KEY url={receiver.url}/v2/enqueue"
    await deliver(words, held(ENTRY), PAGER_KEY="R" * 32)
    await deliver(words, held(OVER), PAGER_KEY="R" * 32)
    trigger, resolve = receiver.at("/v2/enqueue")
    for event in (trigger, resolve):
        validate(PAGERDUTY, event)
    assert (trigger["event_action"], resolve["event_action"]) == ("trigger", "resolve")
    assert trigger["dedup_key"] == resolve["dedup_key"]


async def test_an_alert_to_a_webhook_is_signed(receiver: Receiver) -> None:
    run = held(ENTRY)
    await deliver(f"webhook url={receiver.url}/hook secret=HOOK_KEY", run, HOOK_KEY="not to be seen")
    [(_, headers, body)] = receiver.got
    signed = f"{NOW // SECOND}.{run.id}.{run.fence}.".encode() + receiver.bodies[0]
    expected = hmac.new(b"not to be seen", signed, hashlib.sha256).hexdigest()
    assert headers["x-mainspring-signature"] == f"t={NOW // SECOND},v1={expected}"
    assert [problem["state"] for problem in body["problems"]] == ["dead"]


async def test_an_alert_is_retried_after_503_and_not_after_404(receiver: Receiver) -> None:
    receiver.answers = [503, 404]
    url = f"{receiver.url}/services/T/B/hidden"
    with pytest.raises(Exception, match="answered with 503") as busy:
        await deliver("slack secret=SLACK_URL", held(ENTRY), SLACK_URL=url)
    assert not isinstance(busy.value, GiveUp)
    with pytest.raises(Exception, match="answered with 404") as refused:
        await deliver("slack secret=SLACK_URL", held(ENTRY), SLACK_URL=url)
    assert isinstance(refused.value, GiveUp)
    assert all("hidden" not in str(error.value) for error in (busy, refused))


async def test_an_alert_to_a_forbidden_address_or_without_its_secret_fails() -> None:
    with pytest.raises(Exception, match="leads to an address that is"):
        await deliver("slack secret=SLACK_URL", held(ENTRY), SLACK_URL="http://127.0.0.2/services/T/B/x")
    with pytest.raises(Exception, match="the secret is no URL") as refused:
        await deliver("slack secret=SLACK_URL", held(ENTRY), SLACK_URL="xoxb-not-a-url")
    assert "xoxb" not in str(refused.value)
    with pytest.raises(Exception, match="there is no SLACK_URL here"):
        await deliver("slack secret=SLACK_URL", held(ENTRY))


async def test_an_alert_to_an_unknown_channel_or_of_another_tenant_is_refused(
    receiver: Receiver,
) -> None:
    for run in (held(ENTRY, channel="other"), held(ENTRY, tenant="acme")):
        with pytest.raises(Exception, match="there is no channel"):
            await deliver("slack secret=SLACK_URL", run, SLACK_URL=receiver.url)
    assert receiver.got == []


@pytest.mark.parametrize("tls", ["starttls", "tls"])
async def test_mail_is_sent_over_verified_tls_with_a_password(
    tls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mail_server(tmp_path, tls) as mailbox:
        words = f"email server=localhost:{mailbox.port} tls={tls} from=m@x.example to=a@x.example to=b@x.example"
        words += " user=me secret=MAIL_PASSWORD"
        with pytest.raises(Exception, match="did not prove its name"):
            await deliver(words, held(ENTRY), MAIL_PASSWORD="a password")
        assert mailbox.letters == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        run = held(ENTRY)
        await deliver(words, run, MAIL_PASSWORD="a password")
        [(to, letter)] = mailbox.letters
        assert to == ["a@x.example", "b@x.example"]
        assert (letter["From"], letter["Subject"]) == ("m@x.example", "Mainspring: nightly is dead")
        assert letter["Message-ID"] == f"<{run.id}@x.example>"
        assert "ValueError: ü <b>" in letter.get_content()
        assert mailbox.secret == [True]
        assert mailbox.logins == [("me", "a password")]
        with pytest.raises(Exception, match="did not let us in: 535") as refused:
            await deliver(words, held(ENTRY), MAIL_PASSWORD="another one")
        assert "another one" not in str(refused.value)


async def test_mail_to_a_server_without_tls_needs_an_explicit_setting(tmp_path: Path) -> None:
    with mail_server(tmp_path) as mailbox:
        words = f"email server=localhost:{mailbox.port} from=m@x.example to=a@x.example"
        with pytest.raises(Exception, match="cannot do what is asked for: STARTTLS"):
            await deliver(words, held(ENTRY))
        assert mailbox.letters == []
        await deliver(f"{words} tls=none", held(ENTRY))
        assert len(mailbox.letters) == 1


async def test_temporarily_refused_mail_is_retried_and_permanently_refused_mail_is_not(tmp_path: Path) -> None:
    with mail_server(tmp_path) as mailbox:
        words = f"email server=localhost:{mailbox.port} tls=none from=m@x.example"
        mailbox.answers = ["451 later", "554 never"]
        with pytest.raises(Exception, match="answered 451 later") as later:
            await deliver(f"{words} to=a@x.example", held(ENTRY))
        assert not isinstance(later.value, GiveUp)
        with pytest.raises(Exception, match="answered 554 never") as never:
            await deliver(f"{words} to=a@x.example", held(ENTRY))
        assert isinstance(never.value, GiveUp)
        with pytest.raises(Exception, match=r"refused nobody@x\.example: 550 no such user") as unknown:
            await deliver(f"{words} to=nobody@x.example", held(ENTRY))
        assert isinstance(unknown.value, GiveUp)
    with pytest.raises(Exception, match="did not answer") as away:
        await deliver(f"{words} to=a@x.example", held(ENTRY))
    assert not isinstance(away.value, GiveUp)


async def test_a_run_for_one_address_sends_mail_to_this_address_only(
    tmp_path: Path,
) -> None:
    with mail_server(tmp_path) as mailbox:
        words = f"email server=localhost:{mailbox.port} tls=none from=m@x.example to=a@x.example to=b@x.example"
        mailbox.greylisted = {"b@x.example"}
        await deliver(words, held(ENTRY, to="a@x.example"))
        with pytest.raises(Exception, match=r"refused b@x\.example: 450 come back later") as later:
            await deliver(words, held(ENTRY, to="b@x.example"))
        assert not isinstance(later.value, GiveUp)
        mailbox.greylisted = set()
        await deliver(words, held(ENTRY, to="b@x.example"))
        assert [to for to, _ in mailbox.letters] == [["a@x.example"], ["b@x.example"]]
        with pytest.raises(Exception, match="writes to no such address"):
            await deliver(words, held(ENTRY, to="c@x.example"))


async def test_mail_that_reached_some_of_its_addresses_is_not_retried(tmp_path: Path) -> None:
    with mail_server(tmp_path) as mailbox:
        words = f"email server=localhost:{mailbox.port} tls=none from=m@x.example to=a@x.example to=b@x.example"
        mailbox.greylisted = {"b@x.example"}
        with pytest.raises(Exception, match=r"refused b@x\.example: 450 come back later") as refused:
            await deliver(words, held(ENTRY))
        assert isinstance(refused.value, GiveUp)
        assert [to for to, _ in mailbox.letters] == [["a@x.example"]]
        mailbox.greylisted = {"a@x.example", "b@x.example"}
        with pytest.raises(Exception, match=r"refused a@x\.example: 450") as later:
            await deliver(words, held(ENTRY))
        assert not isinstance(later.value, GiveUp)


async def test_mail_counts_as_sent_once_the_server_has_accepted_it(tmp_path: Path) -> None:
    with mail_server(tmp_path) as mailbox:
        mailbox.farewell = "421 closing"
        await deliver(f"email server=localhost:{mailbox.port} tls=none from=m@x.example to=a@x.example", held(ENTRY))
        assert len(mailbox.letters) == 1


async def test_mail_to_owners_stays_within_the_configured_domains(tmp_path: Path) -> None:
    with mail_server(tmp_path) as mailbox:
        words = f"email server=localhost:{mailbox.port} tls=none from=m@x.example to=owner domain=x.example"
        await deliver(words, held(ENTRY, owner="ann@x.example"))
        for owner in ("ann@evil.example", "", "ann"):
            with pytest.raises(Exception, match="writes to no such address"):
                await deliver(words, held(ENTRY, owner=owner))
        assert [to for to, _ in mailbox.letters] == [["ann@x.example"]]


def test_the_notification_task_does_not_exist_without_channels() -> None:
    assert NOTIFICATION not in BuiltinTasks().handlers(lambda: GuardedEgress())


#: Text that a mail library or a reader could take for another header, another body or an encoded word.
HOSTILE = (
    "=?utf-8?q?a=0D=0ABcc:_victim@x.example=0D=0A=0D=0Abody?=",
    "=?utf-8?b?YQ0KQmNjOiB2aWN0aW1AeC5leGFtcGxlDQoNCmJvZHk=?=",
    "=?us-ascii?q?=0D=0AX-Injected:_1?= =?us-ascii?q?=0D=0A=0D=0Ab?=",
    "=?iso-2022-jp?b?GyRC?=",
    "=?unknown?x?y?=",
    "=?utf-8?q?unfinished",
    "a\r\nBcc: victim@x.example\r\n\r\nbody",
    "a\nBcc: victim@x.example",
    "a\rBcc: victim@x.example",
    "a\x0bBcc: b\x0cc\x1cd\x85e\u2028f\u2029g\x00h",
    "a <victim@x.example>, b: c;",
    "ü" * 300,
    "\u202eevil\u2066",
)


def split_headers(raw: bytes) -> tuple[list[str], bytes]:
    """The names of the headers as a server sees them, and the body."""
    head, _, body = raw.partition(b"\r\n\r\n")
    return [line.partition(b":")[0].decode() for line in head.split(b"\r\n") if line[:1] not in b" \t"], body


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_an_alert_becomes_a_header_or_an_encoded_word(text: str) -> None:
    letter = Email(sender="m@x.example", to=("a@x.example", "b@x.example"), subject=text, text=text, id=text)
    raw = build_message(letter)
    names, body = split_headers(raw)
    assert sorted(names) == sorted(
        (
            "Content-Type",
            "MIME-Version",
            "Content-Transfer-Encoding",
            "From",
            "To",
            "Subject",
            "Message-ID",
            "Auto-Submitted",
        )
    )
    assert b"\r" not in raw.replace(b"\r\n", b""), "a lone carriage return ends a line for some servers"
    assert b"\n" not in raw.replace(b"\r\n", b"")
    shown = "".join(" " if unicodedata.category(each) in ("Cc", "Zl", "Zp") else each for each in text)
    decoded = decode_header(message_from_bytes(raw)["Subject"])
    assert (
        "".join(part if isinstance(part, str) else part.decode(charset or "ascii") for part, charset in decoded)
        == shown
    )
    assert message_from_bytes(raw)["To"] == "a@x.example, b@x.example"
    assert body.isascii()


@pytest.mark.parametrize("owner", ["=?utf-8?q?a?=@x.example", "a=?b@x.example", "a@x.example\r\nBcc: b@x.example"])
async def test_an_owner_that_is_an_encoded_word_is_no_address(tmp_path: Path, owner: str) -> None:
    with mail_server(tmp_path) as mailbox:
        words = f"email server=localhost:{mailbox.port} tls=none from=m@x.example to=owner domain=x.example"
        with pytest.raises(GiveUp, match="writes to no such address"):
            await deliver(words, held(ENTRY, owner=owner))
    assert mailbox.letters == []


def test_a_message_that_cannot_be_built_is_replaced_by_one_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    letter = Email(sender="m@x.example", to=("a@x.example",), subject="s", text="half a pair \ud800", id="run-1")
    read = message_from_bytes(build_message(letter), policy=policy.default)
    assert read["Subject"] == "Mainspring: unreadable alert"
    assert "could not be written" in read.get_content()
    assert "run-1" in read.get_content()
    wrong = msgspec.structs.replace(letter, to=("ü@x.example",))
    with pytest.raises(MailRejected, match="the message cannot be built") as refused:
        build_message(wrong)
    assert refused.value.for_good
