"""Layout of the dashboard's drawings: workflow graphs and heat maps."""

from zoneinfo import ZoneInfo

import pytest

from mainspring.core.model.base.instant import HOUR, parse_instant
from mainspring.features.workflows.graph import HEIGHT, MAX_BOXES, MAX_WIDTH, Box, GraphNode, lay_out
from mainspring.web import heat_map as heat

PARIS = ZoneInfo("Europe/Paris")


def node(name: str, *after: str, state: str = "succeeded", kind: str = "t") -> GraphNode:
    return GraphNode(name, kind, state, after)


def overlap(one: Box, other: Box) -> bool:
    return one.x == other.x and abs(one.y - other.y) < HEIGHT


def test_layers_run_from_left_to_right_and_boxes_do_not_overlap() -> None:
    drawing = lay_out(
        [node("a"), node("b"), node("c", "a", "b"), node("d", "c"), node("e", "a", "d"), node("f", "b", state="failed")]
    )
    assert drawing is not None
    boxes = {box.names[0]: box for box in drawing.boxes}
    assert boxes["a"].x == boxes["b"].x == 0
    assert boxes["c"].x < boxes["d"].x < boxes["e"].x
    assert boxes["f"].state == "failed"
    assert len(drawing.edges) == 6
    assert not any(overlap(one, other) for one in drawing.boxes for other in drawing.boxes if one is not other)
    assert min(box.y for box in drawing.boxes) >= 0
    assert max(box.y for box in drawing.boxes) + HEIGHT <= drawing.height


def test_similar_nodes_of_a_wide_layer_share_one_box() -> None:
    many = [node(f"n{number}", "a", state="failed" if number == 7 else "succeeded") for number in range(9_990)]
    drawing = lay_out([node("a"), *many, node("z", *(one.name for one in many[:1_000]))])
    assert drawing is not None
    assert [len(box.names) for box in drawing.boxes] == [1, 9_990, 1]
    wide = drawing.boxes[1]
    assert (wide.state, wide.counts) == ("failed", {"succeeded": 9_989, "failed": 1})
    assert len(drawing.edges) == 2


def test_a_layer_has_a_maximum_number_of_boxes() -> None:
    drawing = lay_out([node(f"n{number}", kind=f"t{number}") for number in range(50)])
    assert drawing is not None
    assert len(drawing.boxes) == MAX_WIDTH
    assert sum(len(box.names) for box in drawing.boxes) == 50


def test_a_graph_that_is_too_long_is_not_drawn() -> None:
    chain = [node("n0"), *(node(f"n{number}", f"n{number - 1}") for number in range(1, MAX_BOXES + 1))]
    assert lay_out(chain[:-1]) is not None
    assert lay_out(chain) is None


def test_a_week_is_laid_out_in_local_time() -> None:
    start = parse_instant("2026-03-27T22:30:00Z")
    days = heat.build_week([1] * 7 * 1_440, start, PARIS)
    assert [day.name for day in days[:3]] == ["Fri 27", "Sat 28", "Sun 29"]
    assert next(hour for hour in days[0].hours if hour is not None).words.startswith("Fri 27, 23:00: 30 runs")
    # Clocks jump from two to three.
    assert days[2].hours[2] is None
    assert days[2].runs == 23 * 60
    folded = heat.build_week([1] * 7 * 1_440, parse_instant("2026-10-24T22:00:00Z"), PARIS)
    twice = folded[0].hours[2]
    assert twice is not None
    assert (twice.minutes, twice.runs, folded[0].runs) == (120, 120, 25 * 60)


def test_a_day_is_laid_out_by_the_minute() -> None:
    counts = [0] * 1_440
    counts[15:20] = [3] * 5
    counts[65] = 12
    rows = heat.build_day(counts, parse_instant("2026-11-16T02:40:00Z"), PARIS)
    assert [row.name for row in rows[:3]] == ["03:00", "04:00", "05:00"]
    assert [(one.minute, one.length, one.most) for one in rows[0].spans] == [(55, 5, 3)]
    assert rows[1].words == "04:00: 12 runs, busiest at 04:45 with 12"
    assert [(row.label, row.minutes) for row in (rows[0], rows[1], rows[21], rows[-1])] == [
        ("Mon 03:00", 20),
        ("04:00", 60),
        ("Tue 00:00", 60),
        ("03:00", 40),
    ]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"])
@pytest.mark.parametrize(
    "start",
    # In the middle of a day and of an hour; at its beginning; before clocks go forward and back, in the zones above.
    [
        "2026-11-16T14:22:00Z",
        "2026-11-16T00:00:00Z",
        *("2026-03-28T14:07:00Z", "2026-10-24T22:30:00Z", "2026-03-07T23:59:00Z", "2026-10-31T05:01:00Z"),
        *("2026-04-04T01:10:00Z", "2026-10-03T01:10:00Z"),
    ],
)
def test_rows_add_up_to_the_total_of_the_header(zone: str, start: str) -> None:
    at, found = parse_instant(start), ZoneInfo(zone)
    for minutes in (1_440, 7 * 1_440):
        counts = [minute % 7 for minute in range(minutes)]
        days, rows = heat.build_week(counts, at, found), heat.build_day(counts, at, found)
        assert sum(day.runs for day in days) == sum(row.runs for row in rows) == sum(counts)
        assert sum(hour.minutes for day in days for hour in day.hours if hour is not None) == minutes
        assert sum(row.minutes for row in rows) == minutes
        assert minutes // 1_440 <= len(days) <= minutes // 1_440 + 1
    assert len({day.name for day in days}) == len(days)


def test_rows_follow_zones_with_half_hour_offsets() -> None:
    start = parse_instant("2026-11-16T03:00:00Z")
    rows = heat.build_day([1] * 1_440, start, ZoneInfo("Asia/Kolkata"))
    assert (rows[0].name, rows[0].runs, rows[1].runs) == ("08:00", 30, 60)
    assert rows[1].start == "2026-11-16T03:30:00Z"
    assert start % HOUR == 0


def test_equal_values_have_a_medium_level() -> None:
    scale = heat.compute_scale([30] * 100)
    assert heat.compute_level(30, scale) == heat.LEVELS // 2
    assert heat.compute_level(0, scale) == 0
    assert heat.compute_level(100, heat.compute_scale([1] * 10 + [100])) == heat.LEVELS
    assert heat.compute_level(1, heat.compute_scale([1] * 10 + [100])) == 1
