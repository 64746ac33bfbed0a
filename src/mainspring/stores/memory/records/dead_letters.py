"""Memory store: watches on dead letters, and replays."""

from collections.abc import Sequence

import msgspec

from mainspring.core.model.base.instant import DAY, SECOND
from mainspring.core.model.runs.dead_letters import QUIET, watch
from mainspring.core.model.runs.replay import Replay
from mainspring.stores.memory.rows import RunRow
from mainspring.stores.memory.tables import Tables

_BEHIND = 15 * SECOND
_KEPT = 30 * DAY


class MemoryDeadLetters:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def watch_dead_letters(self) -> int:
        tables = self._tables
        with tables.transaction() as now:
            until = now - _BEHIND
            groups: dict[tuple[str, str, str], list[RunRow]] = {}
            for ended_runs in (tables.unsuccessful, *tables.ended_by_class.values()):
                for run_id in reversed(ended_runs):
                    run = tables.runs[run_id]
                    ended = run.finished_at or 0
                    if ended < tables.watched_until:
                        break
                    if run.dead and ended < until:
                        groups.setdefault((run.tenant, run.task, run.fingerprint), []).append(run)
            alarms = 0
            for group, runs in groups.items():
                tables.watches[group], alarm = watch(tables.watches.get(group), len(runs), until)
                if alarm is not None:
                    tables.record_run_event(alarm, max(runs, key=lambda run: (run.finished_at, run.id)))
                    alarms += 1
            for group in [group for group, seen in tables.watches.items() if until - seen.seen_at > QUIET]:
                del tables.watches[group]
            tables.watched_until = max(until, tables.watched_until)
            for old in [one for one in tables.replays.values() if one.ended_at and one.ended_at < now - _KEPT]:
                del tables.replays[old.id]
            return alarms

    async def put_replay(self, replay: Replay) -> None:
        self._tables.replays.setdefault(replay.id, replay)

    async def move_replay(self, replay: Replay) -> bool:
        there = self._tables.replays.get(replay.id)
        if there is None or there.rev != replay.rev:
            return False
        self._tables.replays[replay.id] = msgspec.structs.replace(replay, rev=replay.rev + 1)
        return True

    async def open_replays(self) -> Sequence[Replay]:
        found = [replay for _, replay in sorted(self._tables.replays.items()) if replay.is_open]
        return found[:100]

    async def replays(self, tenant: str | None, limit: int) -> Sequence[Replay]:
        found = sorted(self._tables.replays.items(), reverse=True)
        return [replay for _, replay in found if tenant is None or replay.tenant == tenant][:limit]

    async def replay(self, identifier: str) -> Replay | None:
        return self._tables.replays.get(identifier)
