"""Plans of PostgreSQL for tests of order."""

import pytest

from mainspring.stores.postgres.database import SESSION


def read_rows_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stores read whole tables, in the order of insertion. An index would hide a missing ``ORDER BY``."""
    monkeypatch.setitem(SESSION, "enable_seqscan", "on")
    for plan in ("indexscan", "indexonlyscan", "bitmapscan", "nestloop", "mergejoin"):
        monkeypatch.setitem(SESSION, f"enable_{plan}", "off")
