import asyncio
from pathlib import Path

import apsw

from mainspring import Mainspring
from mainspring.bootstrap.node import Node, Role
from tests.support.processes import free_port


async def test_an_idle_node_leaves_the_disk_alone(tmp_path: Path) -> None:
    """Every commit is a sync of the disk, and rings whoever shares the file: one that answers with a commit of its own
    would be rung by that, for ever."""
    app = Mainspring(str(tmp_path / "idle.db"))
    node = Node(app.settings({"port": free_port()}), {Role.SCHEDULER, Role.WORKER, Role.HTTP}, app, None)
    await node.engine.open()
    app.use(node.engine)
    await node.start()
    try:
        await asyncio.sleep(1)
        watch = apsw.Connection(str(tmp_path / "idle.db"))
        seen, commits = watch.execute("PRAGMA data_version").get, 0
        for _ in range(200):
            await asyncio.sleep(0.01)
            version = watch.execute("PRAGMA data_version").get
            commits += version != seen
            seen = version
        watch.close()
    finally:
        await node.stop()
    # A lease is renewed four times a second, a heart beats now and then, and figures are kept.
    assert commits < 20
