"""The pictures of the documentation are drawn from their sources."""

import tomllib
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from tools.pictures import IMAGES, SOURCES, draw


@pytest.mark.parametrize("source", sorted(SOURCES.glob("*.toml")), ids=lambda path: path.stem)
def test_each_picture_is_current(source: Path) -> None:
    drawn = draw(tomllib.loads(source.read_text("utf-8")))
    ElementTree.fromstring(drawn)  # noqa: S314 - drawn here
    assert (IMAGES / f"{source.stem}.svg").read_text("utf-8") == drawn, "run python -m tools.pictures"


def test_an_unknown_kind_or_key_is_rejected() -> None:
    with pytest.raises(ValueError, match="kind: 'red' is not one of plain, process"):
        draw({"title": "x", "boxes": {"a": {"at": [0, 0], "text": "a", "kind": "red"}}})
    with pytest.raises(msgspec.ValidationError, match="color"):
        draw({"title": "x", "boxes": {"a": {"at": [0, 0], "text": "a", "color": "red"}}})
