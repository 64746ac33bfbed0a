from pathlib import Path

import pytest

from tools import sdk_reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sdk.md"


def test_the_committed_sdk_reference_is_up_to_date() -> None:
    if PAGE.read_text() != sdk_reference.render():
        pytest.fail("docs/reference/sdk.md is out of date: run make reference", pytrace=False)


def test_every_public_name_has_a_description() -> None:
    parts = PAGE.read_text().split("\n### ")[1:]
    silent = [part.partition("\n")[0] for part in parts if not part.partition("\n")[2].strip("\n` ")]
    assert silent == []
