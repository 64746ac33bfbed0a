"""Work inside a transaction of the application, where the store lies in the same database."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.runs.new_run import NewRun
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.store import Accepted


class Request(msgspec.Struct, frozen=True):
    """One statement for a connection of the application, ``SELECT function(argument)``: text in, text out."""

    function: str
    argument: str


class Completion(Protocol):
    """An open transaction that a handler works in."""

    #: The driver's own.
    connection: Any

    async def complete(self, result: bytes | None) -> None:
        """Settle the run as succeeded, inside the transaction. ``Fenced``: it is somebody else's by now."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A store that can take part in transactions of others."""

    async def requests_for(self, runs: Sequence[NewRun]) -> list[Request]:
        """What submits these runs, in order, on a connection that is not ours. Nothing is made by asking."""
        ...

    def read_answer(self, answer: str) -> list[Accepted]:
        """What such a statement has answered, a run each. What is accepted counts when the caller commits."""
        ...

    def refused(self, code: str) -> Invalid | None:
        """What an SQLSTATE says of the connection that was given; nothing if the connection is not at fault."""
        ...

    def completing(self, held: HeldRun) -> AbstractAsyncContextManager[Completion]:
        """A transaction for a handler. It commits if ``complete`` was called, and rolls back otherwise.

        An error while it commits leaves open whether it has: a settlement under the same fence then waits for it, and
        is ``already applied`` if it had.
        """
        ...
