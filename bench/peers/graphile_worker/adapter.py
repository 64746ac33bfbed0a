"""How graphile-worker is started."""

from functools import partial

from bench.peers.adapter import Peer, install_node

PEER = Peer(
    name="graphile-worker",
    install=partial(install_node, "graphile_worker", "graphile-worker"),
    unfinished="SELECT count(*) FROM graphile_worker._private_jobs",
)
