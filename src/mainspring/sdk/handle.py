"""A submitted run, from the outside."""

from typing import TYPE_CHECKING

from mainspring.domain.errors import NotFound
from mainspring.domain.ids import RunId
from mainspring.domain.instant import MILLISECOND, Duration, parse_duration
from mainspring.domain.run import RunState, RunView

if TYPE_CHECKING:
    from mainspring.sdk.app import Mainspring


class RunHandle:
    """Names a run. ``state`` is where it stood when it was accepted."""

    def __init__(self, app: "Mainspring", run_id: RunId, state: RunState) -> None:
        self._app = app
        self.id = run_id
        self.state = state

    def __repr__(self) -> str:
        return f"RunHandle({self.id})"

    async def view(self) -> RunView:
        """How it stands now."""
        engine = await self._app.engine()
        view = (await engine.store.runs([self.id]))[0]
        if view is None:
            raise NotFound(f"run {self.id} is not known, or was pruned")
        return view

    async def wait(self, timeout: Duration = "1h") -> RunView:
        """Return when it has ended; ``TimeoutError`` if it has not by then."""
        engine = await self._app.engine()
        until = engine.clock.monotonic() + parse_duration(timeout, "timeout")
        pause = 5 * MILLISECOND
        while True:
            view = await self.view()
            if view.state.ended:
                return view
            left = until - engine.clock.monotonic()
            if left <= 0:
                raise TimeoutError(f"run {self.id} is still {view.state}")
            await engine.clock.sleep(min(pause, left))
            pause = min(pause * 2, 250 * MILLISECOND)

    async def cancel(self) -> RunState:
        """Ask it to stop; what it is now."""
        engine = await self._app.engine()
        found = await engine.jobs.cancel_runs([self.id])
        if self.id not in found:
            raise NotFound(f"run {self.id} is not known, or was pruned")
        return found[self.id]
