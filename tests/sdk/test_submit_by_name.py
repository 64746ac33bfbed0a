"""A program submits tasks that another program declares, by name: to the store, and to an API."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mainspring import Conflict, Invalid, Limit, Mainspring, RunHandle
from mainspring.config.node import Node, Role
from mainspring.core.model.base.instant import MINUTE, from_datetime
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.storage.catalog import RunFilter
from tests.support.processes import free_port


class Site:
    """An application that runs tasks, and another program that submits them."""

    def __init__(self, client: Mainspring, node: Node) -> None:
        self.client = client
        self.node = node

    async def view(self, handle: RunHandle[object]) -> RunView:
        [view] = await self.node.runtime.store.runs([handle.id], payloads=True)
        assert view is not None
        return view


@pytest.fixture(params=["store", "api"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    port, store = free_port(), str(tmp_path / "site.db")
    app = Mainspring(store, name="workers")

    @app.task(
        queue="mail", priority=2, retries=7, timeout="1m", limits=[Limit("to:{payload.user_id}", most=3)], weight=4
    )
    async def send(user_id: int, subject: str = "hi") -> str:
        return f"{subject} {user_id}"

    node = Node(app.settings({"port": port}), {Role.HTTP, Role.WORKER, Role.SCHEDULER}, app, None)
    await node.runtime.open()
    app.use(node.runtime)
    await node.start()
    client = Mainspring(store) if request.param == "store" else Mainspring.connect(f"http://127.0.0.1:{port}")
    yield Site(client, node)
    await client.close()
    await node.stop()
    await node.runtime.close()


async def test_a_submit_by_name_has_the_options_of_the_task(site: Site) -> None:
    handle = await site.client.submit("send", {"user_id": 42})
    assert await handle.result() == "hi 42"
    view = await site.view(handle)
    assert (view.queue, view.priority, view.policy.timeout, view.policy.weight) == ("mail", 2, MINUTE, 4)
    assert view.policy.retry.max_retries == 7
    assert [limit.key for limit in view.policy.limits] == ["to:42"]


async def test_a_time_in_the_past_is_rejected_by_the_name_of_the_option(site: Site) -> None:
    with pytest.raises(Invalid, match=r"^at: 2020-01-01T00:00:00Z is \S+ in the past"):
        await site.client.submit("send", {"user_id": 42}, at=datetime(2020, 1, 1, tzinfo=UTC))


async def test_an_option_of_the_call_wins(site: Site) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    view = await site.view(await site.client.submit("send", {"user_id": 1}, at=at, queue="other", retries=0))
    assert (view.due, view.queue, view.priority, view.policy.retry.max_retries) == (
        from_datetime(at, "at"),
        "other",
        2,
        0,
    )
    usual = site.client.named("send").options(priority=5, timeout="1h", weight=1, limits=[], delay="1d")
    view = await site.view(await usual.submit(user_id=1))
    assert (view.queue, view.priority, view.policy.timeout, view.policy.weight) == ("mail", 5, 60 * MINUTE, 1)
    assert view.policy.limits == ()


async def test_calls_of_a_batch_have_the_options_of_their_task(site: Site) -> None:
    send, other = site.client.named("send"), site.client.named("unknown")
    first, second, third = await site.client.submit_many(
        [send.prepare(user_id=1), send.options(queue="b").prepare(user_id=2), other.prepare(x=1)]
    )
    views = [await site.view(handle) for handle in (first, second, third)]
    assert [(view.queue, view.priority) for view in views] == [("mail", 2), ("b", 2), ("default", 5)]


async def test_a_wrong_argument_is_rejected_and_named(site: Site) -> None:
    with pytest.raises(Invalid, match=r"payload\.user_id: expected 'int', got 'str'"):
        await site.client.submit("send", {"user_id": "42"})
    with pytest.raises(Invalid, match=r"payload\.nobody: is no argument of task 'send'"):
        await site.client.submit("send", {"user_id": 42, "nobody": 1})
    with pytest.raises(Invalid, match=r"payload: .* does not name its arguments"):
        await site.client.submit("send", [42])  # type: ignore[arg-type]


async def test_a_repeated_submit_makes_no_second_run(site: Site) -> None:
    first = await site.client.submit("send", {"user_id": 1}, unique="u")
    assert (await site.client.submit("send", {"user_id": 1}, unique="u")).id == first.id


async def test_a_conflict_names_the_run_that_is_in_the_way(site: Site) -> None:
    first = await site.client.submit("send", {"user_id": 1}, unique="u", delay="1h")
    send = site.client.named("send")
    with pytest.raises(Conflict) as alone:
        await send.options(unique="u").submit(user_id=2)
    assert alone.value.existing == first.id
    with pytest.raises(Conflict) as batch:
        await site.client.submit_many([send.prepare(user_id=3), send.options(unique="u").prepare(user_id=2)])
    assert batch.value.existing == first.id


async def test_a_task_of_the_program_itself_is_submitted_by_name() -> None:
    app = Mainspring("memory:")

    @app.task(queue="q")
    async def add(self: int, other: int = 1) -> int:
        return self + other

    async with app:
        handle = await app.submit("add", {"self": 1}, priority=1)
        [view] = await (await app.runtime()).store.runs([handle.id], payloads=True)
        assert view is not None
        assert (view.queue, view.priority, view.payload) == ("q", 1, b'{"self":1}')


def test_a_submit_by_name_in_code_that_blocks(tmp_path: Path) -> None:
    with Mainspring(str(tmp_path / "jobs.db")) as app:
        assert app.submit_sync("elsewhere", {"a": 1}, delay="1h").id


async def test_members_of_a_fan_out_by_name_have_the_options_of_their_task(site: Site) -> None:
    handle = await site.client.named("send").options(queue="mail", timeout="7m").map([{"user_id": 1}])
    found = await handle.result()
    assert found.results == ["hi 1"]
    runs = (await site.node.runtime.store.list_runs(RunFilter(tenant=None, task="send"), None, 10)).items
    [(weight, timeout)] = {(run.policy.weight, run.policy.timeout) for run in runs}
    assert (weight, timeout) == (4, 7 * MINUTE)
