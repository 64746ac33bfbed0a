from pathlib import Path

import pytest

from tools import sdk_reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sdk.md"


def test_the_reference_is_what_the_code_says() -> None:
    if PAGE.read_text() != sdk_reference.render():
        pytest.fail("docs/reference/sdk.md is not what the code says: run make reference", pytrace=False)


def test_everything_that_can_be_imported_is_explained() -> None:
    parts = PAGE.read_text().split("\n### ")[1:]
    silent = [part.partition("\n")[0] for part in parts if not part.partition("\n")[2].strip("\n` ")]
    assert silent == []
