"""Encodes charts as ``static/charts.js`` reads them."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from mainspring.web.formatting import instant


def encode_chart(kind: Literal["bars", "lines"], unit: str, times: Iterable[str], series: list[dict[str, Any]]) -> str:
    """Encode a chart. A series has a name, the color of a state, and values; ``joined`` bridges missing values."""
    x = [instant(time) // 1_000_000 for time in times]
    return msgspec.json.encode({"kind": kind, "unit": unit, "x": x, "series": series}).decode()


class _SeriesStyle(msgspec.Struct):
    name: str
    colour: str


class _Legend(msgspec.Struct):
    series: list[_SeriesStyle]


_legend = msgspec.json.Decoder(_Legend)


def read_legend(text: str) -> list[tuple[str, str]]:
    """Return the legend of a chart: each name with the state whose color it has. Empty for a single series."""
    series = _legend.decode(text).series
    found = [(one.name, one.colour.removeprefix("--").removesuffix("-fill")) for one in series]
    return found if len(found) > 1 else []
