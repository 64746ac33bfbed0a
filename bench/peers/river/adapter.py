"""How river is started."""

from bench.peers.adapter import Peer, install_river

PEER = Peer(
    name="river",
    install=install_river,
    unfinished="SELECT count(*) FROM river_job WHERE state <> 'completed'",
    # Its goroutines use all cores.
    drain_workers=1,
)
