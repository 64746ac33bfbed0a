"""Tasks that require labels, and broadcasts: to the store itself and over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mainspring import Invalid, Mainspring
from mainspring.config.node import Node, Role
from mainspring.core.model.runs.run import RunState
from tests.support.processes import free_port


def an_application(path: Path) -> Mainspring:
    app = Mainspring(str(path))

    @app.task(requires={"gpu": "a100"})
    async def train() -> str:
        return "trained"

    @app.task
    async def reload(what: str) -> str:
        return what

    return app


class Site:
    def __init__(self, client: Mainspring, nodes: list[Node]) -> None:
        self.client = client
        self.nodes = nodes


@pytest.fixture(params=["store", "api"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    """Two workers, one of them with a label, on one store."""
    port, path = free_port(), tmp_path / "site.db"
    nodes = []
    for roles, labels in (({Role.SCHEDULER, Role.WORKER, Role.HTTP}, {}), ({Role.WORKER}, {"gpu": "a100"})):
        app = an_application(path)
        node = Node(app.settings({"port": port, "worker.labels": labels}), roles, app, None)
        await node.runtime.open()
        await node.start()
        nodes.append(node)
    client = an_application(path)
    if request.param == "api":
        client = Mainspring.connect(f"http://127.0.0.1:{port}")
    yield Site(client, nodes)
    await client.close()
    for node in nodes:
        await node.stop()


async def test_a_run_goes_to_a_worker_with_the_required_labels(site: Site) -> None:
    sessions = await site.nodes[0].runtime.store.sessions("worker")
    [labelled] = [session.id for session in sessions if session.labels == ("gpu=a100",)]
    calls = [site.client.named("train").options(requires={"gpu": "a100"}).prepare() for _ in range(20)]
    for handle in await site.client.submit_many(calls):
        assert await handle.result("2m") == "trained"
        [view] = await site.nodes[0].runtime.store.runs([handle.id])
        assert view is not None
        assert view.session == labelled


async def test_a_run_waits_if_no_worker_has_the_labels_it_requires(site: Site) -> None:
    handle = await site.client.named("reload").options(requires={"gpu": "h100"}).submit(what="x")
    # Both workers have claimed from the queue since.
    later = await site.client.broadcast(site.client.named("reload").prepare(what="y"))
    assert [await run.result("2m") for run in later] == ["y", "y"]
    assert (await handle.view()).state is RunState.QUEUED


async def test_a_broadcast_runs_once_on_every_worker(site: Site) -> None:
    handles = await site.client.broadcast(site.client.named("reload").prepare(what="config"))
    assert [await handle.result("2m") for handle in handles] == ["config", "config"]
    views = await site.nodes[0].runtime.store.runs([handle.id for handle in handles])
    sessions = await site.nodes[0].runtime.store.sessions("worker")
    assert {view.session for view in views if view is not None} == {session.id for session in sessions}
    assert all(view is not None and view.session == view.target for view in views)


async def test_a_broadcast_goes_to_workers_with_the_required_labels(site: Site) -> None:
    labelled = site.client.named("reload").options(requires={"gpu": "a100"})
    [handle] = await site.client.broadcast(labelled.prepare(what="driver"))
    assert await handle.result("2m") == "driver"
    assert await site.client.broadcast(site.client.named("nobody_knows_it").prepare()) == []
    with pytest.raises(Invalid, match="broadcast"):
        await site.client.broadcast(labelled.options(unique="k").prepare(what="x"))


async def test_a_broadcast_from_sync_code(site: Site) -> None:
    def run() -> list[str]:
        handles = site.client.broadcast_sync(site.client.named("reload").prepare(what="config"))
        return [handle.result("2m") for handle in handles]

    assert await asyncio.to_thread(run) == ["config", "config"]


def test_options_keep_or_replace_the_required_labels_of_the_task(tmp_path: Path) -> None:
    app = an_application(tmp_path / "x.db")
    train = app.named("train")
    assert train.options(priority=2).prepare().options.policy.requires == ("gpu=a100",)
    assert train.options(requires={}).prepare().options.policy.requires == ()
    with pytest.raises(Invalid, match="requires"):
        train.options(requires={"a b": "x"})
    with pytest.raises(Invalid, match="requires"):
        app.task(name="wrong", requires={"gpu": ""})(lambda: None)


def test_a_schedule_requires_the_labels_of_its_task(tmp_path: Path) -> None:
    app = Mainspring(str(tmp_path / "x.db"))

    @app.every("1h")
    @app.task(requires={"region": "eu"})
    async def report() -> None: ...

    [(spec, _)] = app.schedules()
    assert spec.policy.requires == ("region=eu",)
