"""What a chart shows, as ``static/charts.js`` reads it."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from mainspring.ui.words import instant


def chart(kind: Literal["bars", "lines"], unit: str, times: Iterable[str], series: list[dict[str, Any]]) -> str:
    x = [instant(time) // 1_000_000 for time in times]
    return msgspec.json.encode({"kind": kind, "unit": unit, "x": x, "series": series}).decode()
