"""Handlers in virtual time: sync ones, threads, files and sockets, and handlers that submit runs."""

import asyncio
import os
import threading
import time
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from mainspring import Context, Mainspring, transaction
from mainspring.sdk.calls.options import Options, PreparedCall
from mainspring.testing import TestScheduler, loop


@pytest.fixture
def app() -> Mainspring:
    return Mainspring()


async def test_sync_handlers_run_one_at_a_time_and_take_no_time(app: Mainspring) -> None:
    threads: set[str] = set()
    order: list[int] = []

    @app.task
    def block(number: int) -> int:
        threads.add(threading.current_thread().name)
        sum(range(100_000))
        order.append(number)
        return number

    async with TestScheduler(app) as s:
        start = s.now
        for number in range(10):
            await block.options(delay="1m").submit(number)
        await s.advance("1m")
        assert s.runs(block).succeeded == 10
        assert s.now - start == timedelta(minutes=1)
        # They are due within the same millisecond, so their ids decide the order.
        assert sorted(order) == list(range(10))
    assert len(threads) == 1


async def test_a_sync_handler_that_raises_fails_with_its_traceback(app: Mainspring) -> None:
    @app.task(retries=0)
    def refuse() -> None:
        raise PermissionError("not on a Sunday")

    async with TestScheduler(app) as s:
        await refuse.submit()
        assert s.runs(refuse).failed == 1
        error = s.runs(refuse).last.error or ""
        assert 'raise PermissionError("not on a Sunday")' in error


async def test_a_handler_submits_another_task(app: Mainspring) -> None:
    @app.task
    async def child(number: int) -> int:
        return number * 2

    @app.task
    async def parent(count: int) -> int:
        handles = [await child.options(delay="5m").submit(number) for number in range(count)]
        return sum([await handle.result() for handle in handles])

    async with TestScheduler(app) as s:
        handle = await parent.submit(4)
        assert await handle.result() == 12
        assert (s.runs(child).succeeded, s.runs(parent).succeeded) == (4, 1)


async def test_a_sync_handler_submits_and_waits(app: Mainspring) -> None:
    @app.task
    async def child(number: int) -> int:
        await asyncio.sleep(60)
        return number * 2

    @app.task
    def parent(number: int) -> int:
        return child.sync.submit(number).result() + len(s.runs(child))

    async with TestScheduler(app) as s:
        start = s.now
        handle = await parent.submit(4)
        assert await handle.result() == 9
        assert s.now - start >= timedelta(minutes=1)


async def test_a_run_of_a_task_of_another_application_stays_scheduled(app: Mainspring) -> None:
    @app.task
    async def order() -> None:
        await app.named("billing.charge").submit(amount=3)

    async with TestScheduler(app) as s:
        await order.submit()
        await s.advance("365 days")
        assert (s.runs(order).succeeded, s.runs("billing.charge").scheduled) == (1, 1)
        attempts = await (await app.runtime()).store.attempts(s.runs("billing.charge").last.id)
        assert len(attempts) == 1, "it was claimed again and again"


async def test_a_handler_can_query_the_test_scheduler(app: Mainspring) -> None:
    seen: list[int] = []

    @app.every("1h")
    async def count() -> None:
        seen.append(len(s.runs(count)))

    async with TestScheduler(app) as s:
        await s.advance("5h")
    assert seen == [1, 2, 3, 4, 5]


async def test_time_stands_still_while_a_thread_works(app: Mainspring) -> None:
    @app.task(timeout="1m")
    async def think() -> str:
        await asyncio.to_thread(time.sleep, 0.1)
        return "thought"

    async with TestScheduler(app) as s:
        start = s.now
        await think.submit()
        assert s.runs(think).last.result == "thought"
        assert s.now == start


async def test_time_waits_for_a_socket_that_answers(app: Mainspring, monkeypatch: pytest.MonkeyPatch) -> None:
    # However slow the machine is, the answer comes before the silence counts as waiting for time.
    monkeypatch.setattr(loop, "_SILENCE", 120)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    @app.task(timeout="1m")
    async def ask(port: int) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"hello\n")
            return (await reader.readline()).decode().strip()
        finally:
            writer.close()
            await writer.wait_closed()

    # The server runs on the loop of the test, in real time.
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, TestScheduler(app) as s:
        start = s.now
        port: int = server.sockets[0].getsockname()[1]
        await ask.options(delay="1h").submit(port)
        await s.advance("1h")
        assert s.runs(ask).last.result == "hello"
        assert s.now - start == timedelta(hours=1)


async def test_time_passes_while_an_open_file_stays_silent(app: Mainspring) -> None:
    """An idle connection of a pool must not stop a handler that sleeps."""

    @app.task
    async def listen() -> None:
        reader, writer = os.pipe()
        asyncio.get_running_loop().add_reader(reader, lambda: None)
        await asyncio.sleep(3_600 - 1)
        asyncio.get_running_loop().remove_reader(reader)
        os.close(reader)
        os.close(writer)

    async with TestScheduler(app) as s:
        await listen.submit()
        await s.run_until_idle()
        assert s.runs(listen).succeeded == 1


async def test_runs_of_one_ordering_key_run_one_after_the_other(app: Mainspring) -> None:
    log: list[str] = []

    @app.task
    async def step(name: str) -> None:
        log.append(f"{name} begins")
        await asyncio.sleep(600)
        log.append(f"{name} ends")

    async with TestScheduler(app) as s:
        for name in "ab":
            await step.options(ordering_key="k").submit(name)
        assert (s.runs(step).running, s.runs(step).blocked) == (1, 1)
        await s.advance("20m")
        assert s.runs(step).succeeded == 2
    assert log == ["a begins", "a ends", "b begins", "b ends"]


async def test_each_attempt_has_its_number_and_its_own_fence(app: Mainspring) -> None:
    seen: list[tuple[int, int]] = []

    @app.task(retries=2)
    async def fails(context: Context) -> None:
        seen.append((context.attempt, context.fence))
        raise ValueError

    async with TestScheduler(app) as s:
        await fails.submit()
        await s.advance("1m")
        assert s.runs(fails).failed == 1
    assert [attempt for attempt, _ in seen] == [1, 2, 3]
    assert len({fence for _, fence in seen}) == 3


async def test_a_handler_left_running_is_stopped_at_the_end(app: Mainspring) -> None:
    ends: list[str] = []

    @app.task
    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("stopped")

    async with TestScheduler(app):
        await forever.submit()
    assert ends == ["stopped"]
    assert not [thread for thread in threading.enumerate() if thread.name == "mainspring test runtime"]


async def test_a_handler_that_never_stops_does_not_hang_the_test(app: Mainspring) -> None:
    @app.task
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async with TestScheduler(app):
        await stubborn.submit()


async def test_an_exception_in_the_test_propagates(app: Mainspring) -> None:
    with pytest.raises(ZeroDivisionError):
        async with TestScheduler(app):
            raise ZeroDivisionError


async def submit_payload(app: Mainspring, task: str, payload: dict[str, Any]) -> None:
    """As HTTP does, where the function is not known."""
    call: PreparedCall[None] = PreparedCall(task, msgspec.json.encode(payload), Options(), lambda result: None)
    await app.submit_many([call])


class Address(msgspec.Struct):
    street: str
    number: int


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"to": {"street": "Main", "number": "four"}}, "InvalidPayload: payload.to.number: expected 'int', got 'str'"),
        ({"to": {"street": "Main"}}, "InvalidPayload: payload.to.number: is missing"),
        ({"to": None}, "InvalidPayload: payload.to: expected 'object', got 'null'"),
        ({}, "InvalidPayload: payload.to: is missing"),
        (
            {"to": {"street": "Main", "number": 4}, "size": 1},
            "InvalidPayload: payload.size: is no field of this (check its spelling)",
        ),
    ],
)
@pytest.mark.parametrize("name", ["deliver", "deliver_blocking"])
async def test_a_payload_that_does_not_fit_fails_at_once_and_names_the_argument(
    app: Mainspring, name: str, payload: dict[str, Any], error: str
) -> None:
    @app.task
    async def deliver(to: Address) -> None: ...

    @app.task
    def deliver_blocking(to: Address) -> None: ...

    async with TestScheduler(app) as s:
        await submit_payload(app, name, payload)
        await s.run_until_idle()
        run = s.runs(name).last
        assert (run.state, run.attempt) == ("failed", 1)
        assert (run.error or "").endswith(error)


@pytest.mark.parametrize("upgraded", [{"to": 1}, {}, {"wrong": 1}])
async def test_a_payload_that_does_not_fit_after_its_upgrade_fails_at_once(
    app: Mainspring, upgraded: dict[str, Any]
) -> None:
    @app.task(upgrade=lambda payload: upgraded or {"to": payload["missing"]})
    async def deliver(to: str) -> None: ...

    async with TestScheduler(app) as s:
        await submit_payload(app, "deliver", {"address": "x"})
        await s.run_until_idle()
        run = s.runs(deliver).last
        assert (run.state, run.attempt) == ("failed", 1)
        assert "InvalidPayload: payload" in (run.error or "")


async def test_a_task_with_a_transaction_fails_at_once_without_postgresql(app: Mainspring) -> None:
    @app.task(retries=3)
    async def pay(order: int, db: object = transaction()) -> None: ...

    async with TestScheduler(app) as s:
        await pay.submit(7)
        await s.run_until_idle()
        run = s.runs(pay).last
        assert (run.state, run.attempt) == ("failed", 1)
        assert "db: asks for a transaction, and the store is not on PostgreSQL" in (run.error or "")
        assert "call the function with a connection of your own: db=" in (run.error or "")


async def test_the_result_of_a_run_is_decoded(app: Mainspring) -> None:
    @app.task
    async def count(number: int) -> dict[str, int] | None:
        return {"number": number} if number else None

    async with TestScheduler(app) as s:
        await count.submit(1)
        await count.submit(0)
        assert [run.result for run in s.runs(count)] == s.runs(count).results == [{"number": 1}, None]
        assert s.runs(count)[0].result == {"number": 1}
