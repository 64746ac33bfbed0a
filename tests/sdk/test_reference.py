from pathlib import Path

import pytest

import mainspring
from tools import sdk_reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sdk.md"


def test_the_committed_sdk_reference_is_up_to_date() -> None:
    if PAGE.read_text() != sdk_reference.render():
        pytest.fail("docs/reference/sdk.md is out of date: run make reference", pytrace=False)


def test_every_public_name_has_a_description() -> None:
    parts = PAGE.read_text().split("\n### ")[1:]
    silent = [part.partition("\n")[0] for part in parts if not part.partition("\n")[2].strip("\n` ")]
    assert silent == []


def test_every_public_name_and_method_has_a_theme_or_is_internal() -> None:
    named = [name for _, names in sdk_reference.THEMES.values() for name in names]
    assert len(named) == len(set(named))
    given = {kind.__name__ for kind in sdk_reference.GIVEN}
    assert {name for name in named if not name.startswith(".")} == {*mainspring.__all__, *given}
    methods = {name for name, _ in sdk_reference._methods(mainspring.Mainspring)}
    internal = set(sdk_reference.INTERNAL["Mainspring"])
    assert {name[1:] for name in named if name.startswith(".")} | internal == methods


def test_internal_methods_are_not_in_the_reference() -> None:
    page = PAGE.read_text()
    assert all(f"`app.{name}`" not in page for name in sdk_reference.INTERNAL["Mainspring"])
