"""Memory store: data centers of processes, and which data center serves each preference order."""

from collections.abc import Iterable

import msgspec

from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import DAY, Instant
from mainspring.core.model.cluster.datacenters import find_datacenter, find_preference, serving
from mainspring.core.model.runs.run import RunState
from mainspring.core.ports.storage.datacenters import DatacenterLoad, DatacenterStatus, PreferenceOrder
from mainspring.stores.memory.tables import Tables


class MemoryDatacenters:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def datacenters(self) -> list[DatacenterStatus]:
        with self._tables.transaction() as now:
            return self._count_processes(now)

    def _count_processes(self, now: Instant) -> list[DatacenterStatus]:
        found: dict[str, DatacenterStatus] = {}
        for row in self._tables.sessions.values():
            if not row.datacenter or (row.lease_until < now - DAY and not row.live):
                continue
            status = found.get(row.datacenter, DatacenterStatus(name=row.datacenter))
            alive, works = row.is_live(now), row.kind == "worker"
            found[row.datacenter] = msgspec.structs.replace(
                status,
                workers=status.workers + (works and alive and not row.draining),
                draining=status.draining + (works and alive and row.draining),
                schedulers=status.schedulers + (alive and not works),
                seen_at=max(status.seen_at or 0, min(row.lease_until, now)) if works else status.seen_at,
            )
        return sorted(found.values(), key=lambda status: status.name)

    async def set_datacenter(self, session: SessionId, datacenter: str, version: str) -> None:
        row = self._tables.sessions.get(session)
        if row is not None:
            row.datacenter, row.version = datacenter, version

    async def serve_orders(self) -> list[PreferenceOrder]:
        tables = self._tables
        with tables.transaction() as now:
            if not tables.preferences:
                return []
            seen = {status.name: status.seen_at for status in self._count_processes(now) if status.seen_at is not None}
            for word, order in tables.preferences.items():
                preference = find_preference((word,))
                assert preference is not None
                to, why = serving(preference, seen, order.since, now)
                if to != order.serving:
                    tables.preferences[word] = msgspec.structs.replace(order, serving=to, why=why)
                    self._note_moves(word, why or f"moved back to {to}")
            return list(tables.preferences.values())

    async def orders(self) -> list[PreferenceOrder]:
        return list(self._tables.preferences.values())

    def _note_moves(self, word: str, why: str) -> None:
        tables = self._tables
        for job in list(tables.active_by_job):
            for run in tables.list_active_runs(job):
                if word in run.policy.requires and run.state is not RunState.RUNNING and run.scheduled_at is not None:
                    tables.ledgers[job].note(run.scheduled_at, run.id, why)

    async def datacenter_loads(self) -> list[DatacenterLoad]:
        tables = self._tables
        with tables.transaction():
            loads: dict[str, DatacenterLoad] = {}
            for run in tables.runs.values():
                name = self._find_data_center(run.state, run.session, run.policy.requires)
                if name is None:
                    continue
                load = loads.get(name, DatacenterLoad(name=name))
                queued = run.state is RunState.QUEUED
                oldest = [due for due in (load.oldest_due, run.due if queued else None) if due is not None]
                loads[name] = msgspec.structs.replace(
                    load,
                    queued=load.queued + queued,
                    running=load.running + (not queued),
                    oldest_due=min(oldest, default=None),
                )
            return sorted(loads.values(), key=lambda load: load.name)

    def _find_data_center(self, state: RunState, session: int | None, requires: Iterable[str]) -> str | None:
        tables = self._tables
        if state is RunState.RUNNING:
            return next((row.datacenter or None for row in tables.sessions.values() if row.id == session), None)
        if state is not RunState.QUEUED:
            return None
        return find_required_data_center(tables, requires)


def find_required_data_center(tables: Tables, requires: Iterable[str]) -> str | None:
    """Return the data center that a run requires, or that serves its preference order now."""
    order = next((tables.preferences[word] for word in requires if word in tables.preferences), None)
    return find_datacenter(requires) if order is None else order.serving
