"""Tasks that use some processor time, on threads and in processes."""

import threading
import time

from mainspring import Context, Mainspring

app = Mainspring()


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1_000))


def spend_beside(context: Context) -> None:
    burn(0.05)
    context.spend("tokens", 2)


def spend(context: Context) -> None:
    context.spend("tokens", 1)
    beside = threading.Thread(target=spend_beside, args=(context,))
    beside.start()
    burn(0.06)
    beside.join()


@app.task(executor="thread")
def on_thread(context: Context) -> None:
    spend(context)


@app.task
def in_child(context: Context) -> None:
    spend(context)


@app.task(executor="process")
def in_process(context: Context) -> None:
    spend(context)
