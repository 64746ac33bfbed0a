"""Contract of every object store: a folder, and a bucket of a real S3 server."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from mainspring.config.sections.storage import BlobsSection
from mainspring.config.servers.blobs import make_blobs
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import MINUTE, SECOND, Instant
from mainspring.core.ports.blobs import Blobs, BlobsUnavailable
from mainspring.integrations.s3.bucket import BucketBlobs
from tests.support.buckets import CREDENTIALS, bucket_address, credentials_file, new_bucket, shared_s3
from tests.support.waiting import DEADLINE_SECONDS, eventually

DATA = bytes(range(256)) * 4
NAME = "logs/acme/2026-11-16/0c.jsonl.gz"


@pytest.fixture(params=["folder", "s3"])
async def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return new_bucket(shared_s3())
    folder = tmp_path / "blobs"
    folder.mkdir()
    return f"file://{folder}"


@pytest.fixture
async def blobs(address: str, tmp_path: Path) -> AsyncIterator[Blobs]:
    section = BlobsSection(credentials_file=str(credentials_file(tmp_path)))
    found = make_blobs(address, "logs.keep", section)
    yield found
    await found.close()


async def names(blobs: Blobs, prefix: str) -> list[str]:
    return sorted([blob.name async for batch in blobs.list(prefix) for blob in batch])


async def test_get_returns_the_bytes_that_were_put(blobs: Blobs) -> None:
    await blobs.put(NAME, DATA)
    assert await blobs.get(NAME) == DATA


async def test_put_all_writes_many_objects(blobs: Blobs) -> None:
    objects = {f"logs/acme/2026-11-16/{number}": f"{number}".encode() for number in range(30)}
    await blobs.put_all(list(objects.items()))
    assert await names(blobs, "logs") == sorted(objects)
    for name, data in objects.items():
        assert await blobs.get(name) == data
    await blobs.put_all([])
    await blobs.put_all([(NAME, DATA)])
    assert await blobs.get(NAME) == DATA


async def test_a_put_replaces_an_existing_object(blobs: Blobs) -> None:
    await blobs.put(NAME, DATA)
    await blobs.put(NAME, b"other")
    assert await blobs.get(NAME) == b"other"


async def test_get_reads_a_range(blobs: Blobs) -> None:
    await blobs.put(NAME, DATA)
    assert await blobs.get(NAME, 10, 5) == DATA[10:15]
    assert await blobs.get(NAME, 1_000) == DATA[1_000:]
    assert await blobs.get(NAME, 1_020, 500) == DATA[1_020:]
    assert await blobs.get(NAME, 0, 50_000) == DATA


async def test_a_range_beyond_the_end_is_empty(blobs: Blobs) -> None:
    await blobs.put(NAME, DATA)
    assert await blobs.get(NAME, len(DATA), 5) == b""
    assert await blobs.get(NAME, 5_000) == b""


async def test_get_of_a_missing_object_is_none(blobs: Blobs) -> None:
    assert await blobs.get(NAME) is None
    assert await blobs.get(NAME, 5, 5) is None
    assert await names(blobs, "logs") == []
    assert await blobs.folders("logs") == []


async def test_listed_objects_can_be_deleted_during_the_listing(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("files.folder", "s3.bucket"):
        monkeypatch.setattr(f"mainspring.integrations.{module}._LISTED", 10)
    for number in range(35):
        await blobs.put(f"logs/acme/2026-11-16/{number}", b"x")
    sizes = []
    async for batch in blobs.list("logs/acme"):
        sizes.append(len(batch))
        await blobs.delete([blob.name for blob in batch])
    assert (sum(sizes), max(sizes)) == (35, 10)
    assert await blobs.folders("logs") == []


async def test_delete_removes_only_the_named_objects(blobs: Blobs) -> None:
    other = NAME.replace("0c", "1d")
    await blobs.put(NAME, DATA)
    await blobs.put(other, DATA)
    await blobs.delete([NAME, "logs/never/there"])
    await blobs.delete([NAME])
    await blobs.delete([])
    assert await blobs.get(NAME) is None
    assert await blobs.get(other) == DATA


async def test_a_prefix_matches_whole_path_segments(blobs: Blobs) -> None:
    for name in ("logs/a/2026-11-15/x", "logs/a/2026-11-16/y", "logs/ab/2026-11-16/z", "history/a/x"):
        await blobs.put(name, DATA)
    assert await names(blobs, "logs/a") == ["logs/a/2026-11-15/x", "logs/a/2026-11-16/y"]
    assert await names(blobs, "logs") == ["logs/a/2026-11-15/x", "logs/a/2026-11-16/y", "logs/ab/2026-11-16/z"]
    assert await blobs.folders("logs") == ["a", "ab"]
    assert await blobs.folders("logs/a") == ["2026-11-15", "2026-11-16"]
    assert await blobs.folders("logs/a/2026-11-16") == []


async def test_a_listing_has_size_and_time_of_change(blobs: Blobs, tmp_path: Path) -> None:
    def machine_time() -> Instant:
        """The time that the file system writes. The clock of this process may be set to another."""
        probe = tmp_path / "probe"
        probe.touch()
        return probe.stat().st_mtime_ns // 1_000

    before = machine_time()
    await blobs.put(NAME, DATA)
    [blob] = [blob async for batch in blobs.list("logs") for blob in batch]
    assert blob.size == len(DATA)
    # Some servers have a resolution of one second.
    after = machine_time()
    assert before - SECOND <= blob.changed_at <= after + SECOND


async def test_a_folder_without_objects_is_not_listed(blobs: Blobs) -> None:
    await blobs.put("logs/a/2026-11-15/x", DATA)
    await blobs.delete(["logs/a/2026-11-15/x"])
    assert await blobs.folders("logs") == []


async def test_many_objects_are_written_and_read_concurrently(blobs: Blobs) -> None:
    all_names = [f"many/{number:03}" for number in range(40)]
    await asyncio.gather(*(blobs.put(name, name.encode()) for name in all_names))
    assert await asyncio.gather(*(blobs.get(name) for name in all_names)) == [name.encode() for name in all_names]
    assert await names(blobs, "many") == all_names
    await blobs.delete(all_names)
    assert await names(blobs, "many") == []


async def test_a_signed_url_needs_no_credentials(blobs: Blobs, address: str) -> None:
    await blobs.put(NAME, DATA)
    url = await blobs.signed_url(NAME, 5 * MINUTE)
    if not address.startswith("s3://"):
        assert url is None
        return
    assert url is not None
    async with httpx2.AsyncClient(timeout=DEADLINE_SECONDS) as client:
        answer = await client.get(url)
        assert (answer.status_code, answer.content) == (200, DATA)
        assert (await client.get(url, headers={"Range": "bytes=10-14"})).content == DATA[10:15]
        # The signature covers the name of the object.
        assert (await client.get(url.replace("0c.jsonl", "1d.jsonl"))).status_code == 403
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in url


async def test_a_signed_url_expires(blobs: Blobs, address: str) -> None:
    if not address.startswith("s3://"):
        pytest.skip("a folder has none")
    await blobs.put(NAME, DATA)
    url = await blobs.signed_url(NAME, SECOND)
    assert url is not None
    async with httpx2.AsyncClient(timeout=DEADLINE_SECONDS) as client:

        async def is_rejected() -> bool:
            return (await client.get(url)).status_code == 403

        await eventually(is_rejected)


async def test_check_leaves_no_object(blobs: Blobs) -> None:
    await blobs.check()
    assert await names(blobs, "") == []


async def test_concurrent_checks_do_not_disturb_each_other(
    blobs: Blobs, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = BlobsSection(credentials_file=str(credentials_file(tmp_path)))
    other = make_blobs(address, "logs.keep", section)
    delete = blobs.delete

    async def after_another(names: Collection[str]) -> None:
        await other.check()
        [name] = names
        assert await blobs.get(name) == b"mainspring"
        await delete(names)

    monkeypatch.setattr(blobs, "delete", after_another)
    await blobs.check()
    await other.close()


async def test_the_shown_address_has_no_options(blobs: Blobs, address: str) -> None:
    shown = urlsplit(address)
    assert blobs.shown == (shown.path if shown.scheme == "file" else f"s3://{shown.netloc}/some/prefix")


@pytest.mark.parametrize("what", ["put", "put_all", "get", "list", "folders", "check", "delete"])
@pytest.mark.parametrize("kind", ["folder", "bucket", "secret", "server"])
async def test_an_unavailable_store_raises_a_one_line_error_without_secrets(
    tmp_path: Path, what: str, kind: str
) -> None:
    credentials = CREDENTIALS | ({"AWS_SECRET_ACCESS_KEY": "not-the-secret"} if kind == "secret" else {})
    section = BlobsSection(credentials_file=str(credentials_file(tmp_path, credentials)))
    if kind == "folder":
        address = str(tmp_path / "missing")
    elif kind == "bucket":
        address = bucket_address(shared_s3(), "there-is-no-such-bucket")
    elif kind == "secret":
        address = new_bucket(shared_s3())
    else:
        address = "s3://bucket?endpoint=http://127.0.0.1:1"
    blobs = make_blobs(address, "logs.keep", section)
    asked: dict[str, Callable[[], Awaitable[object]]] = {
        "put": lambda: blobs.put(NAME, DATA),
        "put_all": lambda: blobs.put_all([(NAME, DATA), (NAME + ".other", DATA)]),
        "get": lambda: blobs.get(NAME),
        "list": lambda: names(blobs, "logs"),
        "folders": lambda: blobs.folders("logs"),
        "check": blobs.check,
        "delete": lambda: blobs.delete([NAME]),
    }
    with pytest.raises(BlobsUnavailable) as caught:
        await asked[what]()
    await blobs.close()
    message = str(caught.value)
    assert message.startswith(blobs.shown)
    assert "\n" not in message
    assert len(message) < 250
    assert "secret" not in message.removeprefix(blobs.shown)


async def test_a_failed_put_leaves_no_file_in_the_folder(tmp_path: Path) -> None:
    blobs = make_blobs(str(tmp_path), "logs.keep", BlobsSection())
    (tmp_path / "logs").write_text("a file where a folder should be")
    with pytest.raises(BlobsUnavailable, match=r"Not a directory|File exists"):
        await blobs.put(NAME, DATA)
    assert os.listdir(tmp_path) == ["logs"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("blobs", "is not a folder"),
        ("file://blobs", "is not a folder"),
        ("s3://", "is not the address of a bucket"),
        ("s3://key:secret@bucket/prefix", "credentials are no part of it"),
        ("ftp://host/x", "is not the address of a bucket"),
        ("s3://bucket/../x", "is not a prefix"),
        ("s3://bucket/a//b", "is not a prefix"),
        ("s3://bucket?endpoint=ftp://x", "endpoint"),
        ("s3://bucket?endpoint=http://key:secret@host", "endpoint"),
        ("s3://bucket?region=a/b", "is not a region"),
        ("s3://bucket?acl=public", "'acl'"),
        ("gs://bucket?endpoint=http://x", "'endpoint'"),
    ],
)
def test_an_invalid_address_is_rejected(text: str, said: str) -> None:
    with pytest.raises(Invalid, match=r"logs\.keep") as caught:
        make_blobs(text, "logs.keep", BlobsSection())
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("AWS_ACCESS_KEY_ID", "line 1 is not NAME=value"),
        ("# x\n\nsome secret = 5", "line 3"),
        ("AWS_FOO=secret", "aws_foo"),
    ],
)
def test_an_invalid_credentials_file_is_rejected(tmp_path: Path, lines: str, said: str) -> None:
    file = tmp_path / "credentials"
    file.write_text(lines)
    with pytest.raises(Invalid) as caught:
        make_blobs("s3://bucket", "logs.keep", BlobsSection(credentials_file=str(file)))
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("address", ["gs://bucket/prefix", "az://container/prefix"])
def test_google_and_azure_addresses_are_accepted(address: str, tmp_path: Path) -> None:
    """No request is sent: there is no server to test with."""
    names = {
        "gs": {"GOOGLE_SKIP_SIGNATURE": "true"},
        "az": {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_SKIP_SIGNATURE": "true"},
    }[address[:2]]
    section = BlobsSection(credentials_file=str(credentials_file(tmp_path, names)))
    assert make_blobs(address, "logs.keep", section).shown == address


async def test_a_put_has_time_in_proportion_to_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No server takes this much within a millisecond. With one for every 10 bytes there is plenty of time.
    monkeypatch.setattr("mainspring.integrations.s3.bucket._TIMEOUT", timedelta(milliseconds=1))
    section, address = BlobsSection(credentials_file=str(credentials_file(tmp_path))), new_bucket(shared_s3())
    data = os.urandom(5_300_000)
    impatient = make_blobs(address, "logs.keep", section)
    with pytest.raises(BlobsUnavailable):
        await impatient.put(NAME, data)
    await impatient.close()
    monkeypatch.setattr("mainspring.integrations.s3.bucket._PIECE", 10)
    patient = make_blobs(address, "logs.keep", section)
    await patient.put(NAME, data)
    await patient.close()


async def test_a_get_reads_pieces_that_each_have_their_own_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = BlobsSection(credentials_file=str(credentials_file(tmp_path)))
    blobs = make_blobs(new_bucket(shared_s3()), "logs.keep", section)
    assert isinstance(blobs, BucketBlobs)
    sizes: list[int] = []
    read_piece = blobs._piece

    def record(name: str, first: int, end: int) -> bytes | None:
        sizes.append(end - first)
        return read_piece(name, first, end)

    monkeypatch.setattr(blobs, "_piece", record)
    data = os.urandom(5_300_000)
    await blobs.put(NAME, data)
    assert await blobs.get(NAME) == data
    assert await blobs.get(NAME, 1_500_000, 2_000_000) == data[1_500_000:3_500_000]
    assert await blobs.get(NAME, 4_000_000) == data[4_000_000:]
    assert (len(sizes), max(sizes)) == (6 + 2 + 2, 1_000_000)
    await blobs.close()


async def test_a_server_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.integrations.s3.bucket._TIMEOUT", timedelta(milliseconds=200))
    section = BlobsSection(credentials_file=str(credentials_file(tmp_path)))
    connections: list[asyncio.StreamWriter] = []

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    silent = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    blobs = make_blobs(f"s3://bucket?endpoint=http://127.0.0.1:{port}&region=here", "logs.keep", section)
    async with asyncio.timeout(DEADLINE_SECONDS):
        for asked in (blobs.put(NAME, b"small"), blobs.get(NAME), blobs.put(NAME, bytes(1_500_000))):
            with pytest.raises(BlobsUnavailable):
                await asked
    await blobs.close()
    for writer in connections:
        writer.transport.abort()
    silent.close()


async def test_objects_around_the_piece_size_are_read_completely(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.integrations.s3.bucket._PIECE", 100)
    for size in (0, 1, 99, 100, 101, 200, 250):
        await blobs.put(NAME, DATA[:size])
        assert await blobs.get(NAME) == DATA[:size]
        assert await blobs.get(NAME, 50) == DATA[50:size]
        assert await blobs.get(NAME, 50, 150) == DATA[50 : min(size, 200)]
