"""Handles of submitted runs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mainspring.core.model.base.errors import MainspringError, NotFound
from mainspring.core.model.base.ids import RunId
from mainspring.core.model.base.instant import MILLISECOND, Duration, parse_duration
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.runtime.backoff import Backoff

if TYPE_CHECKING:
    from mainspring.sdk.app import Mainspring

T = TypeVar("T")

_FIRST_LOOK = 5 * MILLISECOND
_LONGEST_LOOK = 250 * MILLISECOND


class RunFailed(MainspringError):
    """The run has no result. ``run`` has all details, ``run.error`` the traceback."""

    def __init__(self, run: RunView) -> None:
        last = (run.error or "").strip().rpartition("\n")[2]
        text = f"run {run.id} of {run.task} {run.state.value}" + (f" ({run.reason})" if run.reason else "")
        super().__init__(text + (f": {last}" if last else ""))
        self.run = run
        if run.error and run.error.strip() != last:
            # Shown below the traceback of the caller.
            self.add_note(f"where it was raised:\n{run.error}")


class RunCancelled(RunFailed):
    """The run was cancelled."""


class RunSkipped(RunFailed):
    """The run was skipped, because it would have started too late."""


_ERRORS = {RunState.CANCELLED: RunCancelled, RunState.SKIPPED: RunSkipped}


class RunHandle(Generic[T]):
    """The handle of a run.

    ``state`` is its state when it was accepted; ``new`` is false if its key was used before.
    """

    def __init__(
        self,
        app: "Mainspring",
        run_id: RunId,
        state: RunState,
        read: Callable[[bytes | None], Any],
        *,
        new: bool = True,
    ) -> None:
        self._app = app
        self._read = read
        self.id = run_id
        self.state = state
        self.new = new

    def __repr__(self) -> str:
        return f"RunHandle({self.id})"

    async def view(self) -> RunView:
        """Return the current details of the run."""
        backend = await self._app.backend()
        view = (await backend.runs([self.id]))[0]
        if view is None:
            raise NotFound(f"run {self.id} is not known, or was pruned")
        return view

    async def wait(self, timeout: Duration = "1h") -> RunView:
        """Wait until the run has ended with any outcome. Raises ``TimeoutError`` if it takes longer."""
        backend = await self._app.backend()
        until = backend.clock.monotonic() + parse_duration(timeout, "timeout")
        backoff = Backoff(_FIRST_LOOK, _LONGEST_LOOK)
        while True:
            view = await self.view()
            if view.state.ended:
                return view
            left = until - backend.clock.monotonic()
            if left <= 0:
                raise TimeoutError(f"run {self.id} is still {view.state.value}")
            await backend.clock.sleep(min(backoff.next(), left))

    async def result(self, timeout: Duration = "1h") -> T:
        """Wait for the run and return its result.

        Raises ``RunFailed``, ``RunCancelled`` or ``RunSkipped`` without one.
        """
        view = await self.wait(timeout)
        if view.state is not RunState.SUCCEEDED:
            raise _ERRORS.get(view.state, RunFailed)(view)
        value: T = self._read(view.result)
        return value

    async def cancel(self) -> RunState:
        """Ask the run to stop, and return its state."""
        found = await (await self._app.backend()).cancel([self.id])
        if self.id not in found:
            raise NotFound(f"run {self.id} is not known, or was pruned")
        return found[self.id]

    @property
    def sync(self) -> "SyncHandle[T]":
        """This handle for blocking code."""
        return SyncHandle(self._app, self)


class SyncHandle(Generic[T]):
    """A handle for code without an event loop: each call blocks until it is done."""

    def __init__(self, app: "Mainspring", handle: RunHandle[T]) -> None:
        self._app = app
        self._handle = handle
        self.id = handle.id
        self.state = handle.state
        self.new = handle.new

    def __repr__(self) -> str:
        return f"SyncHandle({self.id})"

    def view(self) -> RunView:
        """Return the current details of the run."""
        return self._app.block_on(self._handle.view())

    def wait(self, timeout: Duration = "1h") -> RunView:
        """Wait until the run has ended with any outcome. Raises ``TimeoutError`` if it takes longer."""
        return self._app.block_on(self._handle.wait(timeout))

    def result(self, timeout: Duration = "1h") -> T:
        """Wait for the run and return its result.

        Raises ``RunFailed``, ``RunCancelled`` or ``RunSkipped`` without one.
        """
        return self._app.block_on(self._handle.result(timeout))

    def cancel(self) -> RunState:
        """Ask the run to stop, and return its state."""
        return self._app.block_on(self._handle.cancel())
