"""How celery is started."""

from functools import partial

from bench.peers.adapter import Peer, install_python

_WORKER = ("celery", "-A", "bench.peers.celery.tasks", "worker", "--concurrency", "2", "--loglevel", "error")

PEER = Peer(
    name="celery",
    install=partial(
        install_python,
        "celery",
        "celery",
        (*_WORKER, "--without-gossip", "--without-mingle", "--without-heartbeat"),
    ),
    unfinished="",
    server="redis",
    # One parent with a process for each core.
    drain_workers=1,
    drain_share=0.03,
)
