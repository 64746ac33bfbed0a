"""Calls on a schedule: one task at several times, each with its own arguments."""

import pytest

from mainspring import Invalid, Mainspring
from mainspring.core.model.base.instant import MINUTE


def test_a_scheduled_call_keeps_its_arguments_and_options() -> None:
    app = Mainspring()

    @app.task(queue="money", priority=1)
    async def pay_city(city: str) -> None: ...

    for city, zone in (("paris", "Europe/Paris"), ("tokyo", "Asia/Tokyo")):
        call = pay_city.options(deadline="5m", start_within="1m").prepare(city)
        assert app.cron("0 9 * * MON", timezone=zone, name=f"payouts-{city}")(call) is call
    app.every("30s")(pay_city.prepare("rome"))
    found = {spec.name: (spec, payload) for spec, payload in app.schedules()}
    assert {name: payload for name, (_, payload) in found.items()} == {
        "payouts-paris": b'{"city":"paris"}',
        "payouts-tokyo": b'{"city":"tokyo"}',
        "pay_city": b'{"city":"rome"}',
    }
    spec, _ = found["payouts-paris"]
    assert (spec.queue, spec.priority, spec.deadline, spec.start_within) == ("money", 1, 5 * MINUTE, MINUTE)


def test_options_for_a_single_submit_are_rejected_on_a_schedule() -> None:
    app = Mainspring()

    @app.task
    async def pay() -> None: ...

    for options in (pay.options(delay="5m"), pay.options(unique="once"), pay.options(tenant="other")):
        with pytest.raises(Invalid, match="is for a call that is submitted"):
            app.every("30s")(options.prepare())
    assert app.schedules() == []
