"""The egress guard: the requests it refuses, and that it connects to the address it has checked. Real local servers."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import HOUR, MILLISECOND, Micros
from mainspring.core.ports.egress import Answer, NoAnswer, OutgoingRequest
from mainspring.integrations.egress.guarded import MAX_BODY, GuardedEgress
from tests.support.certificates import make_certificate

LOCAL = ["127.0.0.0/8"]
#: Shorter than the timeout that the test sets, so that no single read times out.
DRIP_SECONDS = 0.05
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-One: a\r\n\r\nok"


class Server:
    """Answers every request with the same bytes, and records the requests."""

    def __init__(self) -> None:
        self.port = 0
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.names: list[str | None] = []

    @asynccontextmanager
    async def on(
        self,
        address: str = "127.0.0.1",
        port: int = 0,
        answer: bytes = OK,
        tls: ssl.SSLContext | None = None,
        drip: bool = False,
    ) -> AsyncIterator["Server"]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving.append(asyncio.current_task())
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                length = next(
                    (line[15:] for line in head.lower().splitlines() if line.startswith("content-length:")), ""
                )
                self.bodies.append(await reader.readexactly(int(length or 0)))
                writer.write(answer)
                await writer.drain()
                while drip:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(DRIP_SECONDS)
            except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                pass
            finally:
                writer.transport.abort() if drip else writer.close()

        serving: list[asyncio.Task[None] | None] = []
        if tls is not None:
            tls.sni_callback = lambda sock, name, context: self.names.append(name)
        server = await asyncio.start_server(serve, address, port, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self
        await asyncio.gather(*filter(None, serving))


def make_resolver(*answers: Sequence[str]) -> tuple[Callable[[str, int], Awaitable[Sequence[str]]], list[str]]:
    """A name server that gives these answers in turn, and the list of names it was asked for."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    return resolve, asked


async def get(egress: GuardedEgress, url: str, headers: dict[str, str] | None = None, timeout: Micros = HOUR) -> Answer:
    return await egress.send(OutgoingRequest(method="GET", url=url, headers=headers or {}, timeout=timeout))


async def never(host: str, port: int) -> Sequence[str]:
    raise AssertionError(f"{host} was looked up")


# Refused requests
@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.9.9.9",
        "[::1]",
        "[::]",
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "169.254.169.254",
        "192.0.0.192",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "[fec0::1]",
        "[ff02::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:10.0.0.1]",
        "[::ffff:a9fe:a9fe]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::a00:1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "[2001:db8::1]",
    ],
)
async def test_an_internal_address_is_refused(host: str) -> None:
    with pytest.raises(Invalid, match="leads to an address that is"):
        await get(GuardedEgress(resolve=never), f"http://{host}/")


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "017700000001", "1.2.3.4."]
)
async def test_unusual_spellings_of_addresses_are_refused_even_if_the_address_is_allowed(host: str) -> None:
    with pytest.raises(Invalid, match=r"is not an address|Invalid IPv4 address"):
        await get(GuardedEgress(["0.0.0.0/0"], resolve=never), f"http://{host}/")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://example.org/", "is not HTTP"),
        ("file:///etc/passwd", "is not HTTP"),
        ("example.org/", "is not HTTP"),
        ("http:///x", "names no host"),
        ("http://user:secret@example.org/", "holds credentials"),
        ("http://127.0.0.1\\@example.org/", "holds credentials"),
        ("http://example.org:99999/", "there is no port"),
        ("http://a b/", "is not a host"),
        ("http://[fe80::1%25lo]/", "is not a host"),
        ("http://example.org/" + "x" * 9_000, "at most"),
        ("http://exa\nmple.org/", "cannot be read"),
    ],
)
async def test_a_url_that_is_not_plain_http_is_refused(url: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        await get(GuardedEgress(resolve=never), url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "answer", [["10.0.0.1"], ["93.184.215.14", "10.0.0.1"], ["::ffff:127.0.0.1"], ["169.254.169.254"]]
)
async def test_a_name_with_one_internal_address_is_refused(answer: list[str]) -> None:
    resolve, _ = make_resolver(answer)
    with pytest.raises(Invalid, match=r"inwards\.test leads to an address that is") as caught:
        await get(GuardedEgress(resolve=resolve), "http://inwards.test/")
    assert answer[-1] not in str(caught.value), "the error reveals an internal address"


async def test_localhost_is_refused_with_the_resolver_of_the_system() -> None:
    async with Server().on() as server:
        with pytest.raises(Invalid, match="is loopback"):
            await get(GuardedEgress(), f"http://localhost:{server.port}/")
    assert server.heads == []


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "a\r\nX-B: b"},
        {"X-A": "a\nb"},
        {"X-A": "a\x00"},
        {"X-A": "€"},
        {"X-A: b\r\nX-C": "d"},
        {"": "a"},
        {"Host": "internal"},
        {"content-length": "3"},
        {"Transfer-Encoding": "chunked"},
        {"Proxy-Authorization": "x"},
        {"X-A": "1", "x-a": "2"},
        {"X-A": "x" * 20_000},
    ],
)
async def test_headers_that_could_change_the_request_are_refused(headers: dict[str, str]) -> None:
    async with Server().on() as server:
        with pytest.raises(Invalid, match="headers: "):
            await get(GuardedEgress(LOCAL), f"http://127.0.0.1:{server.port}/", headers)
    assert server.heads == []


# Connections


async def test_the_connection_goes_to_the_address_that_was_checked_and_the_name_is_resolved_once() -> None:
    resolve, asked = make_resolver(["127.0.0.1"], ["127.0.0.2"])
    async with Server().on("127.0.0.1") as first, Server().on("127.0.0.2", first.port) as second:
        answer = await get(GuardedEgress(LOCAL, resolve=resolve), f"http://pinned.test:{first.port}/a?b=c#d")
    assert (answer.status, answer.body, answer.headers["x-one"]) == (200, b"ok", "a")
    assert asked == ["pinned.test"]
    assert second.heads == []
    (head,) = first.heads
    assert head.startswith("GET /a?b=c HTTP/1.1\r\n")
    assert f"host: pinned.test:{first.port}\r\n" in head.lower()


async def test_the_next_address_is_tried_when_the_first_refuses_the_connection() -> None:
    resolve, asked = make_resolver(["127.0.0.3", "127.0.0.1"])
    async with Server().on("127.0.0.1") as server:
        answer = await get(GuardedEgress(LOCAL, resolve=resolve), f"http://two.test:{server.port}/")
    assert answer.status == 200
    assert asked == ["two.test"]


async def test_tls_sends_the_name_and_verifies_the_certificate_for_it(tmp_path: Path) -> None:
    make_certificate(tmp_path, "secure.test")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    trusting = ssl.create_default_context(cafile=tmp_path / "certificate.pem")
    resolve, _ = make_resolver(["127.0.0.1"])
    egress = GuardedEgress(LOCAL, resolve=resolve, tls=trusting)
    async with Server().on(tls=serving) as server:
        answer = await get(egress, f"https://secure.test:{server.port}/")
        assert answer.status == 200
        assert server.names == ["secure.test"]
        with pytest.raises(NoAnswer, match=r"(?i)certificate"):
            await get(egress, f"https://other.test:{server.port}/")
        with pytest.raises(NoAnswer, match=r"(?i)certificate"):
            await get(GuardedEgress(LOCAL, resolve=resolve), f"https://secure.test:{server.port}/")
    assert len(server.heads) == 1


async def test_a_proxy_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Server().on() as proxy, Server().on() as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        await get(GuardedEgress(LOCAL), f"http://127.0.0.1:{server.port}/")
    assert proxy.heads == []
    assert len(server.heads) == 1


# Responses


async def test_a_redirect_is_returned_and_not_followed() -> None:
    async with Server().on() as inner:
        moved = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{inner.port}/\r\nContent-Length: 0\r\n\r\n".encode()
        async with Server().on(answer=moved) as outer:
            answer = await get(GuardedEgress(LOCAL), f"http://127.0.0.1:{outer.port}/")
    assert answer.status == 302
    assert inner.heads == []


async def test_a_body_is_cut_at_one_mebibyte() -> None:
    flood = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (4 * MAX_BODY)
    async with Server().on(answer=flood) as server:
        answer = await get(GuardedEgress(LOCAL), f"http://127.0.0.1:{server.port}/")
    assert len(answer.body) == MAX_BODY
    assert answer.cut


async def test_a_compressed_body_is_not_decompressed() -> None:
    compressed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nbomb"
    async with Server().on(answer=compressed) as server:
        answer = await get(GuardedEgress(LOCAL), f"http://127.0.0.1:{server.port}/")
    assert answer.body == b"bomb"
    assert "accept-encoding: identity\r\n" in server.heads[0].lower()


async def test_the_timeout_covers_the_whole_request() -> None:
    slow = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    async with Server().on(answer=slow, drip=True) as server:
        with pytest.raises(NoAnswer, match=r"within 0\.3 s"):
            await get(GuardedEgress(LOCAL), f"http://127.0.0.1:{server.port}/", timeout=300 * MILLISECOND)


async def test_a_refused_connection_and_a_reply_that_is_not_http_have_their_own_errors() -> None:
    async with Server().on(answer=b"SSH-2.0-OpenSSH\r\n\r\n") as server:
        url = f"http://127.0.0.1:{server.port}/"
        with pytest.raises(NoAnswer, match="RemoteProtocolError"):
            await get(GuardedEgress(LOCAL), url)
    with pytest.raises(NoAnswer, match="ConnectError"):
        await get(GuardedEgress(LOCAL), url)
