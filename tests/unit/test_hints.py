"""Hints: what was sealed is opened with the same key, in the same queue, and nothing else is."""

from hypothesis import given
from hypothesis import strategies as st

from mainspring.domain.hints import MESSAGE, Hint, Sealer, rank_of_message
from tests.support.builders import a_run

RANKS = st.integers(min_value=-(2**53), max_value=2**53)
QUEUES = st.sampled_from(["default", "mail", "m", "ail"])


@given(RANKS, QUEUES, QUEUES)
def test_a_hint_is_read_where_it_belongs_and_nowhere_else(rank: int, queue: str, other: str) -> None:
    sealer = Sealer(b"key")
    hint = Hint(a_run().id, queue, rank)
    message = sealer.seal(hint)
    assert len(message) == MESSAGE
    assert rank_of_message(message) == rank
    assert sealer.open(queue, message) == hint
    assert (sealer.open(other, message) is None) is (other != queue)
    assert Sealer(b"another").open(queue, message) is None


@given(st.binary(max_size=80))
def test_bytes_of_others_are_no_hint(message: bytes) -> None:
    assert Sealer(b"key").open("default", message) is None


@given(st.integers(0, MESSAGE - 1), st.integers(1, 255))
def test_a_changed_byte_is_found(place: int, change: int) -> None:
    sealer = Sealer(b"key")
    message = bytearray(sealer.seal(Hint(a_run().id, "default", 7)))
    message[place] ^= change
    assert sealer.open("default", bytes(message)) is None


def test_the_same_hint_is_the_same_message() -> None:
    run = a_run().id
    assert Sealer(b"key").seal(Hint(run, "q", 1, 3, "a")) == Sealer(b"key").seal(Hint(run, "q", 1))
