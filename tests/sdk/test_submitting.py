"""Submitting runs, and their results: one, many, by name, from sync code, over HTTP."""

import asyncio
import contextlib
import multiprocessing
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from mainspring import Conflict, Denied, Invalid, Mainspring, NotFound, RunCancelled, RunFailed, RunSkipped
from mainspring.config.node import Node, Role
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.catalog import RunFilter
from mainspring.sdk.backends import client
from mainspring.sdk.task import Task
from tests.support.line_count import counted_lines
from tests.support.processes import free_port
from tests.support.waiting import eventually


@dataclass
class Point:
    x: int
    y: int


class Order(msgspec.Struct):
    number: int
    lines: list[str] = []


class Person(pydantic.BaseModel):
    name: str
    age: int = 0


class Site:
    """An application with its node, and a client that submits to the store or through the API."""

    def __init__(self, app: Mainspring, client: Mainspring, node: Node, url: str) -> None:
        self.app = app
        self.client = client
        self.node = node
        self.url = url


def define(app: Mainspring) -> None:
    @app.task
    async def add(left: int, right: int = 1) -> int:
        return left + right

    @app.task(executor="thread")
    def move(point: Point, by: int) -> Point:
        return Point(point.x + by, point.y + by)

    @app.task
    async def order(order: Order) -> Order:
        return Order(order.number + 1, order.lines)

    @app.task
    async def birthday(person: Person) -> Person:
        return Person(name=person.name, age=person.age + 1)

    @app.task(retries=0)
    async def burst() -> None:
        raise ValueError("it was too much")

    @app.task
    async def forever() -> None:
        await asyncio.Event().wait()


def find_task(app: Mainspring, name: str) -> Task[..., Any, Any]:
    found = app.named(name)
    assert isinstance(found, Task)
    return found


@pytest.fixture(params=["store", "api"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    port = free_port()
    app = Mainspring(str(tmp_path / "site.db"))
    define(app)
    node = Node(app.settings({"port": port}), {Role.SCHEDULER, Role.WORKER, Role.HTTP}, app, None)
    await node.runtime.open()
    app.use(node.runtime)
    await node.start()
    url = f"http://127.0.0.1:{port}"
    client = Mainspring(str(tmp_path / "site.db")) if request.param == "store" else Mainspring.connect(url)
    define(client)
    yield Site(app, client, node, url)
    await client.close()
    await node.stop()


async def test_a_result_has_the_type_that_the_function_returned(site: Site) -> None:
    app = site.client
    assert await (await find_task(app, "add").submit(2, right=3)).result("2m") == 5
    assert await (await find_task(app, "move").submit(Point(1, 2), by=3)).result("2m") == Point(4, 5)
    assert await (await find_task(app, "order").submit(Order(7, ["a"]))).result("2m") == Order(8, ["a"])
    assert await (await find_task(app, "birthday").submit(Person(name="Ada", age=36))).result("2m") == Person(
        name="Ada", age=37
    )


async def test_waiting_for_a_failed_run_raises_with_its_traceback(site: Site) -> None:
    handle = await find_task(site.client, "burst").submit()
    with pytest.raises(RunFailed, match="it was too much") as caught:
        await handle.result("2m")
    assert caught.value.run.state is RunState.FAILED
    assert "in burst" in "".join(caught.value.__notes__)


async def test_waiting_for_a_cancelled_or_skipped_run_raises(site: Site) -> None:
    app = site.client
    running = await find_task(app, "forever").submit()

    async def is_running() -> bool:
        return (await running.view()).state is RunState.RUNNING

    await eventually(is_running)
    assert await running.cancel() is RunState.CANCELLING
    with pytest.raises(RunCancelled):
        await running.result("2m")
    late = await app.named("nobody_knows_it").options(queue="nobody", start_within="1ms").submit()
    with pytest.raises(RunSkipped):
        await late.result("2m")


async def test_many_runs_are_submitted_at_once(site: Site) -> None:
    app = site.client
    add, order = find_task(app, "add"), find_task(app, "order")
    calls = [add.prepare(n) for n in range(500)] + [order.options(priority=2).prepare(Order(n)) for n in range(500)]
    handles = await app.submit_many(calls)
    assert len({handle.id for handle in handles}) == 1_000
    assert await handles[7].result("2m") == 8
    assert await handles[999].result("2m") == Order(500)
    assert await app.submit_many([]) == []


async def test_a_task_can_be_submitted_by_name(site: Site) -> None:
    app = Mainspring.connect(site.url)
    try:
        handle = await app.named("add").submit(left=4)
        assert await handle.result("2m") == 5
        with pytest.raises(Invalid, match="must be named"):
            await app.named("add").submit(4)
    finally:
        await app.close()


async def test_a_unique_key_creates_one_run_through_store_and_api(site: Site) -> None:
    add = find_task(site.client, "add").options(unique="once", tags=("a",), delay="1s")
    first = await add.submit(1)
    second = await add.submit(1)
    assert first.id == second.id
    # The store and the API recognize the same request.
    assert (await find_task(site.app, "add").options(unique="once", tags=("a",), delay="1s").submit(1)).id == first.id
    with pytest.raises(Conflict):
        await add.submit(2)


async def test_a_run_is_found_by_its_id(site: Site) -> None:
    handle = await find_task(site.client, "add").submit(1)
    assert await site.client.handle(handle.id).result("2m") == 2
    with pytest.raises(NotFound):
        await site.client.handle("f" * 12 + "7" + "f" * 19).view()


async def test_sync_code_can_submit_and_wait(site: Site) -> None:
    def script() -> int:
        handle = find_task(site.client, "add").sync.submit(20)
        assert handle.wait("2m").state is RunState.SUCCEEDED
        many = site.client.submit_many_sync([find_task(site.client, "add").prepare(n) for n in range(3)])
        return handle.result("2m") + sum(one.result("2m") for one in many)

    assert await asyncio.to_thread(script) == 21 + 1 + 2 + 3


async def test_a_sync_submit_on_an_event_loop_is_rejected(site: Site) -> None:
    with pytest.raises(Conflict, match="await the same"):
        find_task(site.client, "add").sync.submit(20)


def _submit_in_child(path: str, answers: "multiprocessing.SimpleQueue[str]") -> None:
    answers.put(find_task(_apps[path], "add").sync.submit(1).id)


_apps: dict[str, Mainspring] = {}


def test_a_forked_process_opens_its_own_connections(tmp_path: Path) -> None:
    path = str(tmp_path / "fork.db")
    with Mainspring(path) as app:
        _forked(app, path)


def _forked(app: Mainspring, path: str) -> None:
    _apps[path] = app
    define(app)
    mine = find_task(app, "add").sync.submit(1).id
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    child = fork.Process(target=_submit_in_child, args=(path, answers))
    child.start()
    theirs = answers.get()
    child.join()
    assert child.exitcode == 0
    assert mine != theirs
    assert app.handle(theirs).sync.view().task == "add"


async def test_an_alias_runs_calls_submitted_under_the_old_name(tmp_path: Path) -> None:
    path = str(tmp_path / "renamed.db")
    before = Mainspring(path)
    handle = await before.named("send_mail").submit(address="a@b.c")
    after = Mainspring(path)

    def add_name(payload: dict[str, Any]) -> dict[str, Any]:
        return {"to": payload["address"], "subject": "hello"}

    @after.task(aliases=["send_mail"], upgrade=add_name)
    async def send_message(to: str, subject: str) -> str:
        return f"{subject} {to}"

    with pytest.raises(Conflict, match="send_mail"):
        after.task(name="send_mail")(lambda: None)
    node = Node(after.settings(), {Role.SCHEDULER, Role.WORKER}, after, None)
    await node.runtime.open()
    after.use(node.runtime)
    await node.start()
    try:
        assert await handle.result("2m") == "hello a@b.c"
        assert await (await send_message.submit("x", "y")).result("2m") == "y x"
    finally:
        await node.stop()
        await before.close()


class LossyProxy:
    """A proxy in front of a real API that loses some of its answers."""

    def __init__(self) -> None:
        self.target: tuple[str, int] = ("", 0)
        self.lose = 0
        self.seen: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, here = await asyncio.open_connection(*self.target)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                self.seen.append((await _forward(reader, here))[1])
                if self.lose:
                    await _forward(there, None)
                    self.lose -= 1
                    break
                await _forward(there, writer)
        for open_one in (writer, here):
            open_one.close()
        self.connections -= 1


async def _forward(reader: asyncio.StreamReader, to: asyncio.StreamWriter | None) -> tuple[bytes, bytes]:
    """Read one HTTP message and forward it."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0"))
    if to is not None:
        to.write(head + body)
    return head, body


@pytest.fixture
async def lossy_api() -> AsyncIterator[tuple[LossyProxy, str]]:
    proxy = LossyProxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    yield proxy, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await eventually(lambda: not proxy.connections)


@pytest.mark.parametrize("site", ["api"], indirect=True)
async def test_a_lost_reply_does_not_create_a_second_run(site: Site, lossy_api: tuple[LossyProxy, str]) -> None:
    proxy, url = lossy_api
    proxy.target = ("127.0.0.1", int(site.url.rpartition(":")[2]))
    proxy.lose = 2
    app = Mainspring.connect(url)
    try:
        await app.named("add").submit(left=1)
        assert len(proxy.seen) == 3
        assert len(set(proxy.seen)) == 1
        assert await site.node.runtime.store.count_runs(RunFilter(tenant="default"), 10) == 1
    finally:
        await app.close()


async def test_an_unreachable_or_malformed_api_address_raises_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0)
    app = Mainspring.connect(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
        await app.named("add").submit(left=1)
    await app.close()
    with pytest.raises(Invalid, match="is not the address"):
        Mainspring.connect("ftp://here")


async def test_an_unknown_key_is_denied(tmp_path: Path) -> None:
    port = free_port()
    node = Node(
        Mainspring(str(tmp_path / "guarded.db")).settings({"port": port, "auth.mode": "keys"}),
        {Role.HTTP},
        None,
        None,
    )
    await node.start()
    app = Mainspring.connect(f"http://127.0.0.1:{port}", key="ms_nobody")
    try:
        with pytest.raises(Denied):
            await app.named("add").submit(left=1)
    finally:
        await app.close()
        await node.stop()


async def test_single_submits_at_once_take_little_work_each() -> None:
    """Bounds the lines of Python from the call to the commit, those of the store in memory included."""
    app = Mainspring("memory:")

    @app.task
    async def count(number: int) -> None: ...

    async with app:
        await count.submit(0)
        with counted_lines() as executed:
            await asyncio.gather(*(count.submit(number) for number in range(64)))
    assert executed.lines < 64 * 520
