"""The event loop of a worker's process."""

import uvloop

from mainspring.core.worker.reporting.attempt_reporter import current


class HandlerStopsLoop(RuntimeError):
    """A handler has called ``loop.stop()``, which would end the worker with all its other runs."""


class OwnLoop(uvloop.Loop):
    """A loop that handlers cannot stop. The run of the handler fails instead, with a traceback that shows the call."""

    def stop(self) -> None:
        if current.get() is not None:
            raise HandlerStopsLoop("the loop belongs to the worker, and a handler cannot stop it")
        super().stop()
