"""Calendars, SLOs, presets and retry policies of schedules and tasks."""

from datetime import timedelta
from typing import Any

import pytest

from mainspring import CatchUp, Mainspring, RetryPolicy
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import HOUR, MINUTE, Duration
from mainspring.core.model.runs import retry
from mainspring.core.model.schedules import catch_up
from mainspring.core.model.schedules.calendar import WhenClosed
from mainspring.core.model.schedules.slo import Slo
from mainspring.features.schedules import file as schedule_file


def test_a_schedule_has_calendars_and_an_slo() -> None:
    app = Mainspring("memory:")

    @app.cron("0 9 * * *", calendars=["weekends"], when_closed="after", slo={"start_within": "5m"})
    async def report() -> None: ...

    @app.every("1h", calendars=["office"], slo={"succeed_every": "2h"})
    async def poll() -> None: ...

    cron, every = (spec for spec, _ in app.schedules())
    assert (cron.calendars, cron.when_closed, cron.slo) == (
        ("weekends",),
        WhenClosed.AFTER,
        Slo(start_within=5 * MINUTE),
    )
    assert (every.calendars, every.when_closed, every.slo) == (
        ("office",),
        WhenClosed.SKIP,
        Slo(succeed_every=2 * HOUR),
    )


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"when_closed": "sideways"}, "when_closed"),
        ({"calendars": ["a", "a"]}, "calendars"),
        ({"slo": {"start_by": "5m"}}, "slo"),
        ({"slo": {}}, "slo"),
        ({"slo": 5}, "slo"),
        ({"slo": {"start_within": "10ms"}}, "slo.startWithin"),
        ({"mode": "fixed_delay", "when_closed": "before"}, "whenClosed"),
        ({"mode": "fixed_delay", "slo": {"start_within": "1m"}}, "slo.startWithin"),
    ],
)
def test_an_invalid_schedule_option_is_rejected_with_its_field(options: dict[str, object], field: str) -> None:
    async def poll() -> None: ...

    with pytest.raises(Invalid) as refused:
        Mainspring("memory:").every("1h", **options)(poll)  # type: ignore[arg-type]
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"backoff": "zz"}, "retry.backoff"),
        ({"first_delay": -1}, "retry.first_delay"),
        ({"first_delay": "5M"}, "retry.first_delay"),
        ({"max_delay": "367d"}, "retry.max_delay"),
        ({"max_retries": -1}, "max_retries"),
        ({"backoff": "list"}, "retry.delays"),
        ({"backoff": "list", "delays": "30s"}, "retry.delays"),
        ({"backoff": "fixed", "delays": (1,)}, "retry.delays"),
        ({"first_delay": "2h"}, "retry.max_delay"),
        ({"retry_on": "ValueError"}, "retry.retry_on"),
        ({"never_on": ["two words"]}, "retry.never_on"),
    ],
)
def test_an_invalid_retry_policy_is_rejected_with_its_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        RetryPolicy(**options)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"mode": "some"}, "catch_up.mode"),
        ({"cap": 4}, "catch_up.cap"),
        ({"mode": "all", "cap": -1}, "catch_up.cap"),
        ({"mode": "all", "max_age": "soon"}, "catch_up.max_age"),
        ({"grace": "367d"}, "catch_up.grace"),
        ({"pace": "1s"}, "catch_up.pace"),
    ],
)
def test_an_invalid_catch_up_policy_is_rejected_with_its_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        CatchUp(**options)
    assert refused.value.field == field


@pytest.mark.parametrize("half_a_minute", [30, 30.0, "30s", "30", "0.5m", timedelta(seconds=30)])
def test_policies_take_seconds_words_and_timedeltas(half_a_minute: Duration) -> None:
    policy = RetryPolicy(backoff="fixed", first_delay=half_a_minute, max_delay=half_a_minute).kept
    assert (policy.first_delay, policy.max_delay) == (MINUTE // 2, MINUTE // 2)
    assert RetryPolicy(backoff="list", delays=[half_a_minute]).kept.delays == (MINUTE // 2,)
    missed = CatchUp(mode="all", grace=half_a_minute, max_age=half_a_minute, pace=half_a_minute).kept
    assert (missed.grace, missed.max_age, missed.pace) == (MINUTE // 2, MINUTE // 2, MINUTE // 2)


def test_policies_have_the_defaults_of_the_engine() -> None:
    assert RetryPolicy().kept == retry.RetryPolicy()
    assert CatchUp().kept == catch_up.CatchUp()


def test_a_preset_chooses_the_timeout_by_the_priority_of_the_call() -> None:
    app = Mainspring("memory:")

    @app.task(preset="payouts", priority=1)
    async def pay() -> None: ...

    def timeout(**options: int | str) -> int:
        return pay.options(**options).prepare().options.policy.timeout  # type: ignore[arg-type]

    assert pay.default_options.policy.timeout == MINUTE
    assert [timeout(priority=number) // MINUTE for number in (1, 2, 3, 7)] == [1, 5, 30, 30]
    assert timeout(priority=2, timeout="10s") == MINUTE // 6
    assert pay.options(timeout="10s").options(priority=2).prepare().options.policy.timeout == MINUTE // 6

    with pytest.raises(Invalid):
        app.task(name="both", preset="payouts", timeout="1m")(pay.function)
    with pytest.raises(Invalid):
        app.task(name="other", preset="nothing")(pay.function)  # type: ignore[call-overload]


def test_a_schedules_file_supports_presets_calendars_and_slos() -> None:
    text = """
schedules:
- name: pay
  task: pay
  every: 1h
  priority: 2
  preset: payouts
  calendars: [weekends]
  whenClosed: before
  slo: {startWithin: 5m, succeedEvery: 2h}
"""
    [(spec, _)] = schedule_file.read_text(text)
    assert spec.policy.timeout == 5 * MINUTE
    assert (spec.calendars, spec.when_closed) == (("weekends",), WhenClosed.BEFORE)
    assert spec.slo == Slo(start_within=5 * MINUTE, succeed_every=2 * HOUR)
