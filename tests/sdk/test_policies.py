"""Calendars, SLOs, presets and retry policies of schedules and tasks."""

import pytest

from mainspring import Mainspring, RetryPolicy
from mainspring.domain.calendar import WhenClosed
from mainspring.domain.catch_up import CatchUp
from mainspring.domain.errors import Invalid
from mainspring.domain.instant import HOUR, MINUTE
from mainspring.domain.slo import Slo
from mainspring.sdk import schedule_file


def test_a_schedule_has_calendars_and_an_slo() -> None:
    app = Mainspring("memory:")

    @app.cron("0 9 * * *", calendars=["weekends"], when_closed="after", slo={"start_within": "5m"})
    async def report() -> None: ...

    @app.every("1h", calendars=["office"], slo=Slo(succeed_every=2 * HOUR))
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
    ("policy", "field"),
    [
        (RetryPolicy(backoff="zz"), "retry.backoff"),  # type: ignore[arg-type]
        (RetryPolicy(first_delay=-1), "retry.firstDelay"),
        (RetryPolicy(backoff="list"), "retry.delays"),
        (RetryPolicy(backoff="fixed", delays=(1,)), "retry.delays"),
        (RetryPolicy(first_delay=2 * HOUR), "retry.maxDelay"),
    ],
)
def test_an_invalid_retry_policy_is_rejected_when_it_is_declared(policy: RetryPolicy, field: str) -> None:
    app = Mainspring("memory:")

    @app.task
    async def poll() -> None: ...

    with pytest.raises(Invalid) as refused:
        poll.options(retry=policy)
    assert refused.value.field == field
    with pytest.raises(Invalid) as refused:

        @app.task(retry=policy)
        async def other() -> None: ...

    assert refused.value.field == field


def test_an_invalid_catch_up_policy_is_rejected_when_it_is_declared() -> None:
    async def poll() -> None: ...

    with pytest.raises(Invalid, match=r"catchUp\.cap: does not go with mode latest"):
        Mainspring("memory:").every("1h", catch_up=CatchUp(cap=4))(poll)


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
