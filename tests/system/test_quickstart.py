"""The quickstart of README.md and of the first ten minutes, played from a wheel in an empty folder."""

from pathlib import Path

import pytest

from tools import dist
from tools.first_minutes import PAGES, Block, Output, Player, blocks_of, find_difference, mask

pytestmark = [pytest.mark.system, pytest.mark.timeout(900), pytest.mark.xdist_group("dist")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    [built] = dist.build(tmp_path_factory.mktemp("wheel"), "--wheel")
    return built


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_the_page_shows_what_its_commands_print(page: Path, wheel: Path, tmp_path: Path) -> None:
    text = page.read_text()
    with Player(tmp_path, wheel) as player:
        outputs = list(player.play(text, PAGES[page]))
    assert len(outputs) == sum(block.kind == "text" for block in blocks_of(text, PAGES[page])) >= 3
    assert [difference for output in outputs if (difference := find_difference(output))] == []


def test_the_first_screen_of_the_readme_has_ten_lines_of_code() -> None:
    [readme] = [page for page in PAGES if page.name == "README.md"]
    [code] = [block.text for block in blocks_of(readme.read_text(), PAGES[readme]) if block.kind == "python"]
    lines = [line for line in code.splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 10


@pytest.mark.parametrize(
    ("shown", "printed", "logged"),
    [
        ("run 01a1f09f932770008046a7e6157448fc succeeded after 1ms", f"run {'a' * 32} succeeded after 2.5s", False),
        ("A  NEXT\nx  in 2.9s", "A   NEXT\nx   in 10s", False),
        ("  dashboard http://127.0.0.1:7070/\n", "21:00:00 [info] dashboard=http://127.0.0.1:7070/", True),
        ("20:00:00 [info] run failed task=a error='KeyError: b'", "failed: a\nKeyError: b", True),
    ],
)
def test_outputs_that_differ_in_ids_times_and_layout_are_alike(shown: str, printed: str, logged: bool) -> None:
    assert find_difference(Output(Block("text", shown, "", 0, 0), printed, logged)) == ""


@pytest.mark.parametrize(
    ("shown", "printed", "logged"),
    [
        ("run X succeeded", "run X failed", False),
        ('"welcome, user 42"', '"welcome, user 43"', False),
        ("  dashboard http://127.0.0.1:7070/\n", "started", True),
        ("task=a error='KeyError: b'", "task=a succeeded", True),
        ("task=a attempt=1/4", "task=a attempt=1/6", True),
        ("mainspring: ready", "mainspring: http", True),
    ],
)
def test_other_outputs_differ(shown: str, printed: str, logged: bool) -> None:
    assert find_difference(Output(Block("text", shown, "", 0, 0), printed, logged))


def test_versions_and_processes_are_masked() -> None:
    assert mask("mainspring 0.1.0\n") == "mainspring VERSION"
    assert mask("worker host-1:1481 left at 21:43:08") == "worker PROCESS left at TIME"
