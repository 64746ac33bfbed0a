"""How often an idle node writes to its store."""

from pathlib import Path

import apsw
import pytest

from mainspring import Mainspring
from mainspring.config.node import Node, Role
from mainspring.core.model.base.instant import Instant
from tests.support.processes import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.system

RENEWALS = 8


async def test_an_idle_node_commits_little_more_than_its_lease_renewals(tmp_path: Path) -> None:
    """A commit wakes every process that shares the file. If a node answered with a commit, it would wake itself again.

    Commits are counted while the scheduler renews its lease a number of times, however long that takes.
    """
    app = Mainspring(str(tmp_path / "idle.db"))
    node = Node(app.settings({"port": free_port()}), {Role.SCHEDULER, Role.WORKER, Role.HTTP}, app, None)
    await node.runtime.open()
    app.use(node.runtime)
    await node.start()
    watch = apsw.Connection(str(tmp_path / "idle.db"))
    versions: set[int] = set()
    leases: set[Instant] = set()

    async def owns_all_shards() -> bool:
        return [session.shards for session in await node.runtime.store.sessions("scheduler")] == [100]

    async def renewed() -> bool:
        versions.add(watch.execute("PRAGMA data_version").get)
        leases.update([session.lease_until for session in await node.runtime.store.sessions("scheduler")])
        return len(leases) > RENEWALS

    try:
        await eventually(owns_all_shards)
        await eventually(renewed)
    finally:
        watch.close()
        await node.stop()
    # The worker sends heartbeats, and metrics are stored now and then.
    assert len(versions) < 3 * RENEWALS
