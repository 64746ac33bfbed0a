"""What is handed in: runs, and requests to stop."""

from collections.abc import Collection, Sequence

from mainspring.adapters.store.sqlite import rows
from mainspring.adapters.store.sqlite.part import Part
from mainspring.domain.ids import RunId
from mainspring.domain.run import NewRun, RunState
from mainspring.ports.store import Accepted


class SqliteSubmissions(Part):
    async def submit(self, runs: Sequence[NewRun]) -> list[Accepted]:
        if not runs:
            return []
        batch = rows.encode([rows.submit_item(run, self._shard_of(run.id)) for run in runs])
        answer = await self._writer.call("submit", batch, size=len(runs))
        accepted = [Accepted(run.id, RunState.QUEUED, True) for run in runs]
        for place, state, new in rows.accepted.decode(answer):
            accepted[place] = Accepted(runs[place].id, state, new != 0)
        return accepted

    async def cancel(self, runs: Collection[RunId]) -> dict[RunId, RunState]:
        answer = await self._writer.call("cancel", rows.encode(list(dict.fromkeys(runs))))
        return dict(rows.run_states.decode(answer))
