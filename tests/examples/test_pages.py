"""The READMEs of the examples and the page about them name things that exist."""

import re
from pathlib import Path

import pytest

from mainspring.cli.options import load_application
from mainspring.config.loading import load
from tests.support.processes import ROOT

EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/__main__.py"))
PAGES = [ROOT / "docs/get-started/examples.md", *(ROOT / "examples" / name / "README.md" for name in EXAMPLES)]


def test_there_are_three_examples() -> None:
    assert EXAMPLES == ["distributed_cron", "payouts", "video_encoding"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_links_applications_and_commands_exist(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / link).exists(), link
    for application in re.findall(r"examples\.\w+:\w+", text):
        load_application(application)
    for name in re.findall(r"python -m examples\.(\w+)", text):
        assert name in EXAMPLES
    for file in re.findall(r"MAINSPRING_CONFIG=(\S+toml)", text):
        monkeypatch.delenv("MAINSPRING_STORE", raising=False)
        assert load({}, file=ROOT / file).store == f"{Path(file).parent.name}.db"
