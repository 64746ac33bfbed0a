"""Which built-in tasks there are here, by the settings."""

from collections.abc import Callable, Mapping
from pathlib import Path

from mainspring.domain.errors import Invalid
from mainspring.domain.instant import SECOND, Micros
from mainspring.ports.egress import Egress
from mainspring.worker.builtin import http, shell
from mainspring.worker.handler import Handler


class BuiltinTasks:
    """A worker asks for its handlers; whoever accepts jobs asks whether a payload could be run with these settings."""

    def __init__(
        self, *, http: bool = True, scripts: Path | None = None, commands: bool = False, grace: Micros = 2 * SECOND
    ) -> None:
        self._http = http
        self._shell = shell.Shell(scripts, commands=commands, grace=grace)

    @property
    def names(self) -> list[str]:
        return [name for name, on in ((http.TASK, self._http), (shell.TASK, self._shell.on)) if on]

    def check(self, task: str, payload: bytes) -> None:
        """Raises ``Invalid`` if this is a built-in task that is off, or that could never run with this payload.

        Says nothing of other tasks. An application may have a task of its own by one of these names: then do not ask.
        """
        if task == shell.TASK:
            self._shell.check(payload)
        elif task == http.TASK:
            if not self._http:
                raise Invalid("task", "calling URLs is off here", "tasks.http = true")
            http.read_call(payload)

    def handlers(self, egress: Callable[[], Egress]) -> Mapping[str, Handler]:
        """``egress`` opens the way out when it is first needed."""
        found: dict[str, Handler] = {}
        if self._http:
            found[http.TASK] = http.http_handler(egress)
        if self._shell.on:
            found[shell.TASK] = self._shell.handler()
        return found
