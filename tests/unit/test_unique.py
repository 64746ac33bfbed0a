"""Validation of unique keys."""

import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, MILLISECOND
from mainspring.core.model.runs.unique import MAX_KEY, Unique


@pytest.mark.parametrize(
    "unique",
    [
        Unique(key="a"),
        Unique(key="x" * MAX_KEY, period=MILLISECOND, otherwise="reject"),
        Unique(key="größe 1", period=366 * DAY, otherwise="debounce"),
    ],
)
def test_a_unique_key_at_its_limits_is_accepted(unique: Unique) -> None:
    unique.check()


@pytest.mark.parametrize(
    ("unique", "field"),
    [
        (Unique(key=""), "unique.key"),
        (Unique(key="x" * (MAX_KEY + 1)), "unique.key"),
        (Unique(key="a\n"), "unique.key"),
        (Unique(key=1), "unique.key"),  # type: ignore[arg-type]
        (Unique(key="a", period=0), "unique.period"),
        (Unique(key="a", period=MILLISECOND - 1), "unique.period"),
        (Unique(key="a", period=366 * DAY + 1), "unique.period"),
        (Unique(key="a", otherwise="ignore"), "unique.otherwise"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_unique_key_is_rejected_by_field(unique: Unique, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        unique.check()
    assert refused.value.field == field
