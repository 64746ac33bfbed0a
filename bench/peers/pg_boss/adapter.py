"""How pg-boss is started."""

from functools import partial

from bench.peers.adapter import Peer, install_node

PEER = Peer(
    name="pg-boss",
    install=partial(install_node, "pg_boss", "pg-boss"),
    unfinished="SELECT count(*) FROM pgboss.job WHERE state <> 'completed'",
)
