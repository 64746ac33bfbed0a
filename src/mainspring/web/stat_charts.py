"""Charts of the statistics by minute."""

from collections.abc import Sequence
from typing import Any

from mainspring.http.schemas.stats import Point
from mainspring.web.charts import encode_chart


def build_ended_chart(points: Sequence[Point]) -> str:
    series = [
        {"name": "succeeded", "colour": "--succeeded-fill", "values": [point.succeeded for point in points]},
        {"name": "failed", "colour": "--failed-fill", "values": [point.failed for point in points]},
    ]
    return encode_chart("bars", "runs", [point.time for point in points], series)


def build_line_chart(points: Sequence[Point], what: str, colour: str) -> str:
    return encode_chart("lines", "ms", [point.time for point in points], _build_lines(points, what, colour))


def _build_lines(points: Sequence[Point], what: str, colour: str) -> list[dict[str, Any]]:
    def values(which: str) -> list[float | None]:
        # There is no value for minutes in which no run ended.
        return [getattr(point, f"{what}_ms_{which}") if point.succeeded + point.failed else None for point in points]

    return [
        {"name": "maximum", "colour": "--queued-fill", "values": values("max"), "joined": True},
        {"name": "mean", "colour": colour, "values": values("mean"), "joined": True},
    ]
