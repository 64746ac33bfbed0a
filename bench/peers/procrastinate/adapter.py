"""How procrastinate is started."""

from functools import partial

from bench.peers.adapter import Peer, install_python

PEER = Peer(
    name="procrastinate",
    install=partial(install_python, "procrastinate", "procrastinate"),
    unfinished="SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'",
    workers=2,
    drain_share=0.03,
)
