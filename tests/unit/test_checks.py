"""``check`` rejects values of the wrong type, which structs accept when code builds them."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.policy import RunPolicy
from mainspring.core.model.runs.retry import RetryPolicy
from mainspring.core.model.schedules.catch_up import CatchUp
from mainspring.core.model.schedules.job import JobSpec, NewJob
from mainspring.core.model.schedules.schedule import CronSchedule, Interval
from tests.support.builders import a_job, a_run, a_spec, every

CHECKED: list[Any] = [
    a_run(),
    RunPolicy(),
    RetryPolicy(),
    CatchUp(),
    a_spec(schedule=every(DAY)),
    a_spec(schedule=CronSchedule("* * * * *")),
    a_job(),
]
WRONG = ["bogus\n", 1.5, 2.0, True, b"\xff", ["x"], {"x": 1}, -1, 1 << 70, object()]


def wrong_structs() -> Iterator[Any]:
    """Every struct with each of its fields replaced by each wrong value."""
    for struct in CHECKED:
        for field in msgspec.structs.fields(struct):
            optional = getattr(struct, field.name) is None
            for value in [*WRONG, *([] if optional else [None])]:
                # Any bytes are a valid payload, and any bool is a valid ``must_be_new``.
                if type(value) is not type(getattr(struct, field.name)) or field.name not in ("payload", "must_be_new"):
                    yield pytest.param(
                        msgspec.structs.replace(struct, **{field.name: value}),
                        id=f"{type(struct).__name__}.{field.name}={value!r:.10}",
                    )


@pytest.mark.parametrize("struct", list(wrong_structs()))
def test_a_field_of_the_wrong_type_is_rejected(struct: Any) -> None:
    with pytest.raises(Invalid):
        struct.check()


@pytest.mark.parametrize("schedule", [every(DAY), CronSchedule("* * * * *")])
@pytest.mark.parametrize("value", [*WRONG, None])
def test_a_schedule_field_of_the_wrong_type_is_rejected(schedule: Interval | CronSchedule, value: object) -> None:
    for field in msgspec.structs.fields(schedule):
        if value is None and field.name in ("start", "end"):
            continue
        wrong = msgspec.structs.replace(schedule, **{field.name: value})
        with pytest.raises(Invalid):
            a_spec(schedule=wrong).check()


def test_valid_structs_pass_the_check() -> None:
    for struct in CHECKED:
        struct.check()


@pytest.mark.parametrize(
    ("struct", "field"),
    [
        (RunPolicy(guarantee="exactly-once"), "guarantee"),  # type: ignore[arg-type]
        (RunPolicy(timeout=0.5), "timeout"),  # type: ignore[arg-type]
        (RunPolicy(ordering_key=5), "orderingKey"),  # type: ignore[arg-type]
        (RetryPolicy(max_retries=1.5), "maxRetries"),  # type: ignore[arg-type]
        (RetryPolicy(first_delay=0.5), "retry.firstDelay"),  # type: ignore[arg-type]
        (RetryPolicy(backoff="quadratic"), "retry.backoff"),  # type: ignore[arg-type]
        (RetryPolicy(delays=[1]), "retry.delays"),  # type: ignore[arg-type]
        (CatchUp(mode="x"), "catchUp.mode"),  # type: ignore[arg-type]
        (CatchUp(grace=1.5), "catchUp.grace"),  # type: ignore[arg-type]
        (a_spec(overlap="bogus"), "overlap"),  # type: ignore[arg-type]
        (a_spec(schedule=Interval(60_000_000, mode="bogus")), "mode"),  # type: ignore[arg-type]
        (a_spec(schedule=CronSchedule("* * * * *", gap="bogus")), "gap"),  # type: ignore[arg-type]
        (a_spec(schedule=CronSchedule("* * * * *", fold="bogus")), "fold"),  # type: ignore[arg-type]
        (a_run(priority="2"), "priority"),  # type: ignore[arg-type]
        (a_run(queue=5), "queue"),  # type: ignore[arg-type]
    ],
)
def test_the_error_names_the_wrong_field(
    struct: RunPolicy | RetryPolicy | CatchUp | JobSpec | NewRun | NewJob, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        struct.check()
    assert refused.value.field == field
