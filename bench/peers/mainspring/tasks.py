"""The tasks of our own worker."""

from bench.peers import peer
from mainspring import Mainspring

QUEUE = "bench"

app = Mainspring()
_recorders: list[peer.Recorder] = []


def recorder() -> peer.Recorder:
    """The one of this process."""
    if not _recorders:
        _recorders.append(peer.Recorder())
    return _recorders[0]


@app.task(queue=QUEUE)
async def nothing(user_id: int, email: str, note: str) -> None:
    recorder().count()


@app.task(queue=QUEUE)
async def stamp(n: int, due: int) -> None:
    recorder().stamp(n, due)
