"""Limits, breakers and unique runs as an application uses them, in virtual time."""

import asyncio

import pytest

from mainspring import Breaker, Conflict, Invalid, Limit, Mainspring, Unique
from mainspring.testing import TestScheduler


@pytest.fixture
def app() -> Mainspring:
    return Mainspring()


class Concurrency:
    """Counts active calls, and the most at a time."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def work(self, seconds: float = 10) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(seconds)
        self.now -= 1


async def test_a_limit_bounds_how_many_runs_of_a_task_are_active(app: Mainspring) -> None:
    active = Concurrency()

    @app.task(limit=2)
    async def work() -> None:
        await active.work()

    async with TestScheduler(app) as s:
        start = s.now
        for _ in range(6):
            await work.submit()
        await s.run_until_idle()
        assert (s.runs(work).succeeded, active.most) == (6, 2)
        assert (s.now - start).total_seconds() == pytest.approx(30, abs=1)


async def test_a_limit_key_can_use_arguments_and_is_shared_between_tasks(app: Mainspring) -> None:
    active = {7: Concurrency(), 8: Concurrency()}
    limits = [Limit("customer:{payload.customer}", 1)]

    @app.task(limits=limits)
    async def sync(customer: int) -> None:
        await active[customer].work()

    @app.task(limits=limits)
    async def bill(customer: int, amount: int = 1) -> None:
        await active[customer].work()

    async with TestScheduler(app) as s:
        for customer in (7, 8, 7, 8):
            await sync.submit(customer)
            await bill.submit(customer=customer)
        await s.run_until_idle()
        assert s.runs(sync).succeeded + s.runs(bill).succeeded == 8
    assert [one.most for one in active.values()] == [1, 1]


async def test_a_rate_limit_bounds_how_many_runs_start_in_a_period(app: Mainspring) -> None:
    starts: list[float] = []

    @app.task(limits=[Limit("api", 3, per="1m")])
    async def call() -> None:
        starts.append((s.now - begin).total_seconds())

    async with TestScheduler(app) as s:
        begin = s.now
        for _ in range(8):
            await call.submit()
        await s.advance("30s")
        assert len(starts) == 3
        await s.advance("2m")
    assert len(starts) == 8
    assert all(later - earlier >= 60 for earlier, later in zip(starts, starts[3:], strict=False))


async def test_a_breaker_pauses_a_failing_task(app: Mainspring) -> None:
    calls = 0
    broken = True

    @app.task(retries=0, breaker=Breaker(3, within="1m", pause="5m"))
    async def call() -> None:
        nonlocal calls
        calls += 1
        if broken:
            raise ConnectionError

    async with TestScheduler(app) as s:
        for _ in range(3):
            await call.submit()
        await s.advance("1s")
        for _ in range(5):
            await call.submit()
        await s.advance("4m")
        assert calls == 3
        await s.advance("2m")
        assert calls == 4, "one run was tried, and failed"
        broken = False
        await s.advance("5m")
        assert (calls, s.runs(call).succeeded) == (8, 4)


async def test_a_call_can_override_the_limits_of_its_task(app: Mainspring) -> None:
    @app.task
    async def call() -> None: ...

    prepared = call.options(limits=[Limit("api", 3)], breaker=Breaker()).prepare()
    assert [limit.key for limit in prepared.options.policy.limits] == ["api"]
    assert prepared.options.policy.breaker is not None


async def test_a_unique_key_keeps_rejects_or_debounces_the_run(app: Mainspring) -> None:
    done: list[int] = []

    @app.task
    async def report(customer: int, version: int) -> None:
        done.append(version)

    only_one = report.options(delay="10m", unique=Unique("report:{payload.customer}"))
    async with TestScheduler(app) as s:
        first = await only_one.submit(7, 1)
        assert (first.new, (await only_one.submit(7, 2)).id) == (True, first.id)
        assert (await only_one.submit(8, 3)).new
        with pytest.raises(Conflict, match=first.id):
            await report.options(unique=Unique("report:{payload.customer}", otherwise="reject")).submit(7, 4)
        latest = await report.options(
            delay="5m", unique=Unique("report:{payload.customer}", otherwise="debounce")
        ).submit(7, 5)
        assert latest.id == first.id
        await s.advance("1h")
    assert done == [5, 3]


async def test_a_schedule_has_the_limits_of_its_task(app: Mainspring) -> None:
    active = Concurrency()

    @app.every("1m")
    @app.task(limits=[Limit("customer:{payload.customer}", 1)])
    async def sync(customer: int = 7) -> None:
        await active.work(90)

    [(spec, _)] = app.schedules()
    assert [limit.key for limit in spec.policy.limits] == ["customer:7"]
    async with TestScheduler(app) as s:
        await s.advance("10m")
    assert active.most == 1


async def test_invalid_limits_breakers_and_unique_keys_are_rejected(app: Mainspring) -> None:
    with pytest.raises(Invalid, match=r"limits\.most"):
        Limit("api", 0)
    with pytest.raises(Invalid, match=r"limits\.per"):
        Limit("api", 1, per="a while")
    with pytest.raises(Invalid, match=r"breaker\.failures"):
        Breaker(0)
    with pytest.raises(Invalid, match=r"unique\.otherwise"):
        Unique("x", otherwise="perhaps")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="limits"):
        app.task(limits=["api"])(test_a_unique_key_keeps_rejects_or_debounces_the_run)  # type: ignore[list-item]

    @app.task(limits=[Limit("customer:{payload.order.customer}", 1)])
    async def sync(order: dict[str, int]) -> None: ...

    async with TestScheduler(app):
        with pytest.raises(Invalid, match=r"'order\.customer'"):
            await sync.submit({"number": 1})
