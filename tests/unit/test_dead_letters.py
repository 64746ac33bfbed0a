"""Dead letters: when alarms are raised, merge patches of payloads, and the pace of a replay."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.base.merge_patch import check_patch, patched
from mainspring.core.model.runs.dead_letters import (
    ALARM_EVERY,
    GROWS_BY,
    GROWS_WITHIN,
    QUIET,
    DeadLetterWatch,
    build_trend,
    watch,
)
from mainspring.core.model.runs.replay import AT_ONCE, Replay, judged, room, stopped
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from tests.support.builders import an_id
from tests.support.views import a_run_view

NOW = 1_000 * DAY


@given(st.lists(st.tuples(st.integers(SECOND, 2 * HOUR), st.integers(1, 300)), min_size=1, max_size=40))
def test_an_alarm_is_raised_for_a_new_group_and_hourly_for_quick_growth(looks: list[tuple[int, int]]) -> None:
    seen: DeadLetterWatch | None = None
    now, grew_at = NOW, None
    for pause, new in looks:
        now += pause
        before = seen
        seen, alarm = watch(before, new, now)
        assert (alarm == "dead_letters.opened") == (before is None or now - before.seen_at > QUIET)
        if alarm == "dead_letters.growing":
            assert seen.count >= GROWS_BY
            assert now - seen.since <= GROWS_WITHIN
            assert grew_at is None or now - grew_at >= ALARM_EVERY
            grew_at = now


def test_slow_growth_raises_no_alarm() -> None:
    seen, _ = watch(None, 1, NOW)
    for minute in range(1, 600):
        seen, alarm = watch(seen, 5, NOW + minute * MINUTE)
        assert alarm is None


@given(st.lists(st.integers(0, 2 * DAY), max_size=50))
def test_a_trend_counts_the_last_day_by_the_hour(ages: list[int]) -> None:
    trend = build_trend([NOW - age for age in ages], NOW)
    assert (len(trend), sum(trend)) == (24, sum(age < DAY for age in ages))
    assert trend[-1] == sum(age < HOUR for age in ages)


@pytest.mark.parametrize(
    ("payload", "patch", "becomes"),
    [
        ('{"a":"b"}', '{"a":"c"}', {"a": "c"}),
        ('{"a":"b"}', '{"b":"c"}', {"a": "b", "b": "c"}),
        ('{"a":"b","b":"c"}', '{"a":null}', {"b": "c"}),
        ('{"a":{"b":"c","d":1}}', '{"a":{"b":"d","d":null}}', {"a": {"b": "d"}}),
        ('{"a":[1]}', '{"a":[2]}', {"a": [2]}),
        ("[1,2]", '{"a":"b","c":null}', {"a": "b"}),
        ("{}", '{"a":{"bb":{"ccc":null}}}', {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_follows_rfc_7396(payload: str, patch: str, becomes: object) -> None:
    assert msgspec.json.decode(patched(payload.encode(), patch.encode())) == becomes


@pytest.mark.parametrize("patch", [b"[]", b"1", b"null", b'"x"'])
def test_a_patch_must_be_an_object(patch: bytes) -> None:
    with pytest.raises(Invalid, match="payloadPatch"):
        check_patch("payloadPatch", patch)


def a_replay(**fields: object) -> Replay:
    return msgspec.structs.replace(Replay(id=an_id(), author="ada", tenant=None, made_at=NOW), **fields)


@given(st.floats(0.1, 10_000), st.lists(st.integers(1, 5 * SECOND), min_size=1, max_size=30))
def test_a_replay_keeps_its_pace(per_second: float, pauses: list[int]) -> None:
    replay, now = a_replay(state="going", going_since=NOW, per_second=per_second), NOW
    for pause in pauses:
        now += pause
        allowed = room(replay, now)
        assert 0 <= allowed <= AT_ONCE
        replay = msgspec.structs.replace(replay, replayed=replay.replayed + allowed)
        assert replay.replayed <= (now - NOW) * per_second / SECOND + 1


def test_a_replay_waits_until_every_canary_has_succeeded() -> None:
    canaries = (RunId(an_id()), RunId(an_id()))
    replay = a_replay(canaries=2)
    assert room(replay, NOW) == 2
    replay = msgspec.structs.replace(replay, replayed=2, canary_runs=canaries)
    good, busy = a_run_view(RunState.SUCCEEDED), a_run_view(RunState.RUNNING)
    assert room(replay, NOW) == 0
    assert judged(replay, [good, busy], NOW) == replay
    going = judged(replay, [good, good], NOW + 5)
    assert (going.state, going.going_since) == ("going", NOW + 5)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (a_run_view(RunState.FAILED, reason="error"), "failed (error)"),
        (a_run_view(RunState.CANCELLED, reason="cancelled"), "cancelled (cancelled)"),
        (None, "is gone"),
    ],
)
def test_a_canary_that_does_not_succeed_stops_the_replay(run: RunView | None, why: str) -> None:
    canary = RunId(an_id())
    replay = a_replay(canaries=1, replayed=1, canary_runs=(canary,))
    over = judged(replay, [run], NOW)
    assert (over.state, over.why, over.ended_at) == ("stopped", f"canary {canary} {why}", NOW)
    assert not over.is_open


def test_a_stopped_replay_does_not_count_runs_that_were_chosen_but_not_created() -> None:
    replay = a_replay(state="going", replayed=7, next=(RunId(an_id()), RunId(an_id())))
    assert (stopped(replay, "enough", NOW).replayed, stopped(replay, "enough", NOW).next) == (5, ())
