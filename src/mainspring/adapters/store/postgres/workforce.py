"""Sessions, claims, beats and settlements."""

from collections.abc import Collection, Sequence

import asyncpg

from mainspring.adapters.store.postgres.database import Connection
from mainspring.adapters.store.postgres.names import Kind
from mainspring.adapters.store.postgres.part import Part
from mainspring.adapters.store.postgres.rows import OUTCOME_CODES, STATE_CODES, held_runs
from mainspring.domain.ids import RunId, SessionId
from mainspring.domain.instant import Micros
from mainspring.domain.run import HeldRun, Outcome, RunState, Settlement, Verdict
from mainspring.ports.store import Beat, NewSession, Want

_KINDS = {"worker": 1, "scheduler": 2}


class Workforce(Part):
    async def open_session(self, session: NewSession) -> SessionId:
        rows = await self._db.fetch(
            "open_session", _KINDS[session.kind], session.name, session.datacenter, session.version, session.ttl
        )
        return SessionId(rows[0]["id"])

    async def close_session(self, session: SessionId) -> None:
        await self._db.execute("close_session", session)

    async def beat(
        self, session: SessionId, ttl: Micros, held: Collection[RunId], pending: Collection[int], last_claim: int
    ) -> Beat:
        row = (await self._db.fetch("beat", session, ttl, list(held), list(pending), last_claim))[0]
        if row["cancelled_unknown"]:
            # Asked to stop, and nobody runs them. What is missed here the next beat finds again.
            await self._release_unknown(session, row["cancelled_unknown"])
        return Beat(
            now=row["now"],
            alive=row["alive"],
            cancels=tuple(row["cancels"]),
            returned=row["returned"] + len(row["cancelled_unknown"]),
        )

    async def _release_unknown(self, session: SessionId, runs: list[RunId]) -> None:
        rows = await self._db.fetch("fences", runs, session)
        await self.settle(
            [
                Settlement(
                    run=RunId(row["id"]),
                    fence=row["fence"],
                    outcome=Outcome.RELEASED,
                    state=RunState.QUEUED,
                    reason="released",
                    lets_go=True,
                )
                for row in rows
            ]
        )

    async def claim(self, session: SessionId, number: int, wants: Sequence[Want]) -> list[HeldRun]:
        queues: list[int] = []
        limits: list[int] = []
        await self._names.number_all((Kind.QUEUE, want.queue) for want in wants)
        for want in wants:
            if want.limit > 0:
                queues.append(self._names.number(Kind.QUEUE, want.queue))
                limits.append(want.limit)
        if not queues:
            return []
        rows = await self._db.fetch("claim", session, number, queues, limits)
        return await self._held(rows)

    async def _held(self, rows: list[asyncpg.Record]) -> list[HeldRun]:
        try:
            held, unreadable = held_runs(rows, self._names, self._policies)
        except KeyError:
            await self._names.name_all([0])
            held, unreadable = held_runs(rows, self._names, self._policies)
        await self.settle(unreadable)
        return held

    async def settle(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        if not settlements:
            return []
        first, again = _once_each(settlements)
        if again:
            # A statement ends a run once: who comes a second time, under another fence perhaps, comes after it.
            verdicts = dict(zip(first, await self.settle([settlements[index] for index in first]), strict=True))
            verdicts |= dict(zip(again, await self.settle([settlements[index] for index in again]), strict=True))
            return [verdicts[index] for index in range(len(settlements))]
        applied: set[tuple[str, int]] = set()
        free = [settlement for settlement in settlements if not settlement.lets_go]
        succeeded = [settlement for settlement in free if settlement.outcome is Outcome.SUCCESS]
        if succeeded:
            applied |= _applied(await self._db.fetch("settle_succeeded", *_succeeded(succeeded)), succeeded)
        if len(succeeded) < len(free):
            others = [settlement for settlement in free if settlement.outcome is not Outcome.SUCCESS]
            applied |= _applied(await self._db.fetch("settle_other", *_others(others)), others)
        if len(free) < len(settlements):
            keyed = [settlement for settlement in settlements if settlement.lets_go]
            rows = await self._db.transaction(lambda connection: self._settle_keyed(connection, keyed))
            applied |= _applied(rows, keyed)
        if len(applied) == len(settlements):
            return [Verdict.APPLIED] * len(settlements)
        return await self._verdicts(settlements, applied)

    async def _settle_keyed(self, connection: Connection, settlements: list[Settlement]) -> list[asyncpg.Record]:
        rows = await connection.fetch(self._db.sql["settle_other"], *_others(settlements))
        await self._let_go(connection, rows)
        return rows

    async def _verdicts(self, settlements: Sequence[Settlement], applied: set[tuple[str, int]]) -> list[Verdict]:
        missed = [item for item in settlements if (item.run, item.fence) not in applied]
        rows = await self._db.fetch("settled_before", [item.run for item in missed], [item.fence for item in missed])
        before = {(row["id"], row["fence"]) for row in rows}
        verdicts = []
        for item in settlements:
            key = (item.run, item.fence)
            if key in applied:
                verdicts.append(Verdict.APPLIED)
            else:
                verdicts.append(Verdict.ALREADY if key in before else Verdict.FENCED)
        return verdicts


def _once_each(settlements: Sequence[Settlement]) -> tuple[list[int], list[int]]:
    """Where each run stands for the first time, and where it stands again."""
    if len({item.run for item in settlements}) == len(settlements):
        return [], []
    first = {item.run: index for index, item in reversed(list(enumerate(settlements)))}
    places = sorted(first.values())
    return places, [index for index, item in enumerate(settlements) if first[item.run] != index]


def _succeeded(settlements: list[Settlement]) -> list[object]:
    return [
        [item.run for item in settlements],
        [item.fence for item in settlements],
        [item.result for item in settlements] if any(item.result is not None for item in settlements) else None,
    ]


def _others(settlements: list[Settlement]) -> list[object]:
    # Sorted, so that two batches that share rows lock them in the same order.
    ordered = sorted(settlements, key=lambda item: item.run)
    return [
        [item.run for item in ordered],
        [item.fence for item in ordered],
        [OUTCOME_CODES[item.outcome] for item in ordered],
        [STATE_CODES[item.state] for item in ordered],
        [item.reason for item in ordered],
        [item.delay for item in ordered],
        [item.error for item in ordered],
        [item.result for item in ordered],
    ]


def _applied(rows: list[asyncpg.Record], settlements: list[Settlement]) -> set[tuple[str, int]]:
    if len(rows) == len(settlements):
        return {(item.run, item.fence) for item in settlements}
    return {(row["id"], row["fence"]) for row in rows}
