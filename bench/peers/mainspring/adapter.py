"""How mainspring is started."""

from bench.peers.adapter import Peer, install_mainspring

PEER = Peer(
    name="mainspring",
    install=install_mainspring,
    unfinished="SELECT (SELECT count(*) FROM mainspring.run) + (SELECT count(*) FROM mainspring.waiting)",
    url_variable="MAINSPRING_STORE",
)
