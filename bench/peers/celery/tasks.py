"""The application of Celery: late acknowledgment, no result backend, a large prefetch for short tasks."""

from celery import Celery
from celery.signals import worker_process_init, worker_ready

from bench.peers import peer

app = Celery("peer", broker=peer.URL)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    broker_connection_retry_on_startup=True,
)
recorders: list[peer.Recorder] = []


@worker_process_init.connect
def start_recording(**_: object) -> None:
    recorders.append(peer.Recorder())


@worker_ready.connect
def announce(**_: object) -> None:
    peer.ready()


@app.task(name="nothing")
def nothing(user_id: int, email: str, note: str) -> None:
    recorders[0].count()


@app.task(name="stamp")
def stamp(n: int, due: int) -> None:
    recorders[0].stamp(n, due)
