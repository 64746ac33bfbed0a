"""Moves a store: all rows are copied, compared and committed; only then is the source marked as moved."""

from collections.abc import Callable, Mapping

import msgspec

from mainspring.core.model.base.errors import Conflict
from mainspring.core.ports.upkeep.transfer import KINDS, RowCounts, Source, Target


class MoveReport(msgspec.Struct, frozen=True, kw_only=True):
    #: By kind: what was read from the source and verified in the target.
    tallies: Mapping[str, RowCounts]
    #: Whether the copy existed already, from an interrupted move. It was compared, and the source was marked.
    resumed: bool

    @property
    def rows(self) -> int:
        return sum(tally.rows for tally in self.tallies.values())


async def move_rows(source: Source, target: Target, to: str, report: Callable[[str, int, int], None]) -> MoveReport:
    """Move the source to the target.

    ``to`` is the address of the target as people see it. ``report`` gets the progress of each batch: kind, rows done,
    rows in all. Raises ``Conflict`` if the copy differs; then nothing was moved.
    """
    try:
        facts = source.open()
        counts = source.counts()
        try:
            already_copied = await target.open(facts)
            tallies: dict[str, RowCounts] = {}
            for kind in KINDS:
                tally = RowCounts()
                for batch in source.batches(kind):
                    if not already_copied:
                        await target.write(kind, batch)
                    tally = tally.plus(kind, batch)
                    report(kind, tally.rows, counts[kind])
                tallies[kind] = tally
            for kind, tally in tallies.items():
                found = await target.tally(kind)
                if found != tally:
                    found_rows = f"{found.rows:,} of {tally.rows:,}" if found.rows != tally.rows else "other"
                    raise Conflict(f"the new store has {found_rows} rows of {kind}; nothing was moved")
            await target.commit()
        finally:
            await target.close()
        source.mark_moved(to)
        return MoveReport(tallies=tallies, resumed=already_copied)
    finally:
        source.close()
