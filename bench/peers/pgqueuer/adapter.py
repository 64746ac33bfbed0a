"""How pgqueuer is started."""

from functools import partial

from bench.peers.adapter import Peer, install_python

PEER = Peer(
    name="pgqueuer",
    install=partial(install_python, "pgqueuer", "pgqueuer"),
    unfinished="SELECT count(*) FROM pgqueuer",
    workers=2,
)
