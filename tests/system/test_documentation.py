"""Every page of the documentation is played: its commands print what it shows. See ``tools/pages``.

``RECORD_PAGES=1`` writes what the commands print into the pages instead.
"""

import os
from collections import defaultdict
from pathlib import Path

import pytest

from tools import dist
from tools.pages.blocks import ROOT, explain_check, find_plan, find_plan_name, list_pages, read_blocks
from tools.pages.outputs import find_difference
from tools.pages.player import PageError, Player, record

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def list_groups() -> dict[str, list[Path]]:
    """The pages that are played, by the name of their plan. Pages with one plan share an installation."""
    groups = defaultdict(list)
    for page in list_pages():
        if any(explain_check(page, block) == "played" for block in read_blocks(page.read_text())):
            groups[find_plan_name(page)].append(page)
    return groups


def build_parameter(name: str, pages: list[Path]) -> "pytest.ParameterSet":
    marks = []
    if find_plan(name).wheel:
        marks.append(pytest.mark.xdist_group("dist"))
    if find_plan(name).postgres:
        marks.append(pytest.mark.postgres)
    return pytest.param(name, pages, marks=marks, id=name.removesuffix("/*"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    [built] = dist.build(tmp_path_factory.mktemp("wheel"), "--wheel")
    return built


@pytest.mark.parametrize(("name", "pages"), [build_parameter(name, pages) for name, pages in list_groups().items()])
def test_the_commands_of_a_page_print_what_it_shows(
    name: str, pages: list[Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plan = find_plan(name)
    store = request.getfixturevalue("postgres_database") if plan.postgres else ""
    built = request.getfixturevalue("wheel") if plan.wheel else None
    problems = []
    with Player(tmp_path, plan, store, built) as player:
        for page in pages:
            try:
                outputs = list(player.play(page))
            except PageError as error:
                problems.append(f"{page.name}: {error}")
                continue
            different = [one for one in outputs if one.block.kind != "sh" and find_difference(one)]
            hidden = [one for one in outputs if one.block.kind == "sh" and one.printed.strip()]
            if "RECORD_PAGES" in os.environ:
                record(page, [*different, *hidden])
            else:
                problems += [f"{page.name}:{one.block.line}: {find_difference(one)}" for one in different]
                problems += [f"{page.name}:{one.block.line}: not shown: {one.printed}" for one in hidden]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def test_the_first_screen_of_the_readme_has_ten_lines_of_code() -> None:
    [code] = [block.text for block in read_blocks((ROOT / "README.md").read_text()) if block.kind == "python"]
    lines = [line for line in code.splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 10
