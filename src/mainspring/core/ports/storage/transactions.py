"""The port for work inside a transaction of the application, if the store is in the same database."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.storage.answers import SubmitResult


class Request(msgspec.Struct, frozen=True):
    """One statement for a connection of the application, ``SELECT function(argument)``: text in, text out."""

    function: str
    argument: str


class TaskTransaction(Protocol):
    """An open transaction in which a handler works."""

    #: The driver's own connection.
    connection: Any

    async def complete_run(self, result: bytes | None) -> None:
        """Complete the run as succeeded, inside the transaction. ``Fenced``: another worker has it by now."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A store that can take part in transactions of the application."""

    async def requests_for(self, runs: Sequence[NewRun]) -> list[Request]:
        """Return the statements that submit these runs, in order, on a connection of the application.

        This changes nothing.
        """
        ...

    def read_answer(self, answer: str) -> list[SubmitResult]:
        """Decode the answer of such a statement, one entry per run. It is valid once the caller commits."""
        ...

    def refused(self, code: str) -> Invalid | None:
        """Return the error that an SQLSTATE means for the given connection. None: the connection is not at fault."""
        ...

    def completing(self, held: HeldRun) -> AbstractAsyncContextManager[TaskTransaction]:
        """Open a transaction for a handler. It commits if ``complete_run`` was called, and rolls back otherwise.

        An error while it commits leaves open whether it has. Reporting an outcome under the same fence then waits for
        it, and is answered ``duplicate`` if it had committed.
        """
        ...
