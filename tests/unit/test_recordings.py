"""The recordings of commands: SVG documents that load nothing, made of real output."""

import re
from xml.etree import ElementTree

import pytest

from tools.recordings import IMAGES, Line, draw

RECORDINGS = sorted(IMAGES.glob("recording-*.svg"))


def test_there_is_a_recording_of_each_command() -> None:
    assert [path.stem.removeprefix("recording-") for path in RECORDINGS] == ["doctor", "explain", "top", "up"]


@pytest.mark.parametrize("name", [path.name for path in RECORDINGS])
def test_a_recording_loads_nothing_and_names_no_folder_of_a_machine(name: str) -> None:
    text = (IMAGES / name).read_text("utf-8")
    ElementTree.fromstring(text)  # noqa: S314 - drawn here
    assert not re.findall(r"url\(|@import|<image|<use|<script|href=", text)
    assert not re.findall(r"/(?:tmp|home|root|work)/", text)


def test_lines_are_escaped_colored_and_appear_in_their_order() -> None:
    drawn = draw(
        "mainspring x",
        [Line(3.0, "a <b>"), Line(3.5, "\x1b[1;31mred\x1b[0m & plain"), Line(60.0, "late"), Line(61.0, "")],
    )
    ElementTree.fromstring(drawn)  # noqa: S314 - drawn here
    assert "a &lt;b&gt;" in drawn
    assert '<tspan class="bold red">red</tspan> &amp; plain' in drawn
    # A long pause is shortened, and empty lines at the end are left out.
    assert re.findall(r"animation-delay:([\d.]+)s", drawn) == ["0.00", "0.50", "1.00", "2.20"]
