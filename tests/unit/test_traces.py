"""Traces of runs, parsing of ``traceparent``, and sampling."""

import random
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.ids import JobId, RunId, derived_id
from mainspring.core.model.runs.new_run import fingerprint_of_request
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.traces import (
    build_trace,
    chosen,
    chosen_tick,
    ids_in,
    read_traceparent,
    span_of_attempt,
    traced,
)
from tests.support.builders import a_held_run

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize("text", [SENT, f" {SENT} ", f"00-{TRACE}-{SPAN}-03", f"01-{TRACE}-{SPAN}-01-more"])
def test_a_sampled_traceparent_is_normalized(text: str) -> None:
    assert read_traceparent(text) == SENT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}-00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n{SENT}",
        SENT * 1_000,
    ],
)
def test_an_unsampled_or_invalid_traceparent_is_ignored(text: str) -> None:
    assert read_traceparent(text) == ""


def test_the_trace_of_a_run_is_that_of_its_policy() -> None:
    assert (
        build_trace(msgspec.structs.replace(a_held_run(), policy=traced(RunPolicy(), SENT)))
        == ids_in(SENT)
        == (int(TRACE, 16), int(SPAN, 16))
    )
    assert build_trace(a_held_run(), 1) is None


def test_sampling_of_a_tick_is_deterministic() -> None:
    ids = [RunId(derived_id(1_700_000_000_000_000 + number, 7, "job", number)) for number in range(4_000)]
    chosen = [run for run in ids if chosen_tick(run, 0.1)]
    assert 300 < len(chosen) < 500
    assert not any(chosen_tick(run, 0) for run in ids)
    assert all(chosen_tick(run, 1) for run in ids)
    tick = msgspec.structs.replace(a_held_run(), id=chosen[0], job_id=JobId("0" * 32), scheduled_at=1)
    assert build_trace(tick, 0.1) == (int(chosen[0], 16), span_of_attempt(chosen[0], 0))
    assert build_trace(tick) is None


def test_each_attempt_has_a_span_of_its_own() -> None:
    runs = [RunId(f"{random.getrandbits(128):032x}") for _ in range(100)]
    assert len({span_of_attempt(run, attempt) for run in runs for attempt in range(5)}) == 500


def test_an_empty_trace_does_not_change_the_fingerprint_of_a_request() -> None:
    """Fingerprints that were stored before traces existed must stay valid."""
    assert fingerprint_of_request(RunPolicy()) == fingerprint_of_request(RunPolicy(trace=""))


@given(count=st.integers(0, 3_000), ratio=st.floats(0, 1), seed=st.integers(0, 1_000))
def test_sampling_chooses_each_item_at_most_once_in_order(count: int, ratio: float, seed: int) -> None:
    found = chosen(count, ratio, Random(seed).random)
    assert found == sorted(set(found))
    assert set(found) <= set(range(count))


@pytest.mark.parametrize("ratio", [0, 1e-12, 0.01, 0.5, 0.99, 1])
def test_sampling_chooses_the_given_ratio_independent_of_position(ratio: float) -> None:
    random = Random(1).random
    positions = [number for _ in range(2_000) for number in chosen(100, ratio, random)]
    assert abs(len(positions) / 200_000 - ratio) <= 0.005
    assert not positions or abs(sum(number < 50 for number in positions) / len(positions) - 0.5) < 0.05
