"""Packed run logs: gzip that any tool can read, with an index for partial reads."""

import gzip
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.logs.packed_log import Damaged, from_position, index_size, pack, read_index, unpack
from mainspring.core.logs.run_logs import build_folder_name
from mainspring.core.ports.storage.catalog import LogLine

AT = 1_794_000_000_123_456


def lines(count: int, length: int = 100) -> list[LogLine]:
    letters = random.Random(1)
    return [
        LogLine(position=7 * n + 3, at=AT + n, attempt=n % 3 + 1, text=f"{n} {letters.randbytes(length // 2).hex()}\n")
        for n in range(count)
    ]


def unpacked(data: bytes, after: int = 0) -> list[LogLine]:
    frames = from_position(read_index(data), after)
    return [line for frame in frames for line in unpack(data[frame.first : frame.first + frame.size])]


def test_a_packed_log_is_gzipped_json_lines() -> None:
    whole = lines(3_000)
    read = [json.loads(line) for line in gzip.decompress(pack(whole)).splitlines()]
    assert [(one["position"], one["text"]) for one in read] == [(line.position, line.text) for line in whole]
    assert read[0] == {"position": 3, "time": "2026-11-06T21:20:00.123456Z", "attemptNumber": 1, "text": whole[0].text}


@pytest.mark.parametrize("count", [0, 1, 2, 5_000])
def test_every_line_is_unpacked_as_it_was_packed(count: int) -> None:
    assert unpacked(pack(lines(count))) == lines(count)


def test_a_partial_read_needs_only_some_frames() -> None:
    whole = lines(5_000)
    data = pack(whole)
    frames = read_index(data)
    assert len(frames) > 5
    assert frames[-1].first + frames[-1].size == len(data)
    for wanted in (0, 1, 2_500, 4_999):
        after = whole[wanted].position - 1
        chosen = from_position(frames, after)
        found = [line for line in unpack(data[chosen[0].first :][: chosen[0].size]) if line.position > after]
        assert found[0] == whole[wanted]
    assert len(from_position(frames, whole[-2].position)) == 1


def test_there_are_no_lines_after_the_last_position() -> None:
    whole = lines(50)
    assert [line for line in unpacked(pack(whole), after=10**9) if line.position > 10**9] == []


@given(st.lists(st.text(max_size=400), max_size=60))
def test_lines_with_any_text_are_unpacked_unchanged(texts: list[str]) -> None:
    whole = [LogLine(position=n + 1, at=AT, attempt=1, text=text) for n, text in enumerate(texts)]
    assert unpacked(pack(whole)) == whole


def test_repeated_lines_are_compressed() -> None:
    whole = [
        LogLine(position=n + 1, at=AT + n, attempt=1, text="the same thing again and again\n") for n in range(5_000)
    ]
    assert len(pack(whole)) < 5_000 * 30 // 3


def test_damaged_data_is_rejected() -> None:
    for data in (b"", b"short", gzip.compress(b"not one of ours" * 10), b"\x00" * 100):
        with pytest.raises(Damaged):
            index_size(data)
    data = pack(lines(5_000))
    with pytest.raises(Damaged, match="ends within its index"):
        read_index(data[:20])
    [first, *_] = read_index(data)
    with pytest.raises(Damaged, match="cannot be read"):
        unpack(data[first.first : first.first + first.size - 5])


@pytest.mark.parametrize(
    ("tenant", "folder"),
    [
        ("acme", "acme"),
        ("Acme_2-b", "Acme_2-b"),
        ("..", "=2e=2e"),
        ("a/b", "a=2fb"),
        ("a=b", "a=3db"),
        ("größe", "gr=c3=b6=c3=9fe"),
    ],
)
def test_the_name_of_a_tenant_is_escaped_for_a_path(tenant: str, folder: str) -> None:
    assert build_folder_name(tenant) == folder


def test_long_names_are_shortened_and_stay_unique() -> None:
    names = {build_folder_name("ß" * 199 + letter) for letter in "ab"}
    assert len(names) == 2
    assert all(len(name) <= 150 for name in names)
