"""Idempotency keys and unique keys."""

from collections.abc import Mapping

from mainspring.core.model.base.ids import RunId
from mainspring.core.model.runs.unique import Unique
from mainspring.core.store import KEYS_KEPT
from mainspring.stores.memory.data import StoreData
from mainspring.stores.memory.rows import RunRow, UniqueKey, UsedKey


class KeyTransitions(StoreData):
    """Finds, takes and frees the keys of runs and jobs."""

    def find_used_key(self, tenant: str, key: str) -> UsedKey | None:
        """Return the use of an idempotency key that has not expired."""
        used = self.used_keys.get((tenant, key))
        return used if used is not None and self.now < used.at + KEYS_KEPT else None

    def find_unique_holder(self, tenant: str, key: str, fresh: Mapping[RunId, RunRow]) -> RunRow | None:
        """Return the run, stored or about to be stored, that holds a unique key, while the key counts."""
        taken = self.unique_keys.get((tenant, key))
        row = None if taken is None else fresh.get(taken.run) or self.runs.get(taken.run)
        if taken is None or row is None:
            return None
        counts = not row.state.ended if taken.until is None else self.now < taken.until
        return row if counts else None

    def take_unique_key(self, tenant: str, unique: Unique, run: RunId) -> None:
        until = None if unique.period is None else self.now + unique.period
        self.unique_keys[tenant, unique.key] = UniqueKey(run, until)

    def _free_unique_key(self, run: RunRow) -> None:
        if run.unique is not None:
            taken = self.unique_keys.get((run.tenant, run.unique.key))
            if taken is not None and taken.run == run.id:
                del self.unique_keys[run.tenant, run.unique.key]
