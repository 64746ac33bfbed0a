"""Every code block of the documentation is run, compared or parsed; one that is not says why."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.pages.blocks import ROOT, Block, explain_check, list_pages, parse, read_blocks, read_plans
from tools.pages.outputs import Output, find_difference, find_ids, mask

PAGES = [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in list_pages()]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_is_checked(page: Path) -> None:
    blocks = list(read_blocks(page.read_text()))
    assert len(blocks) == len(re.findall(r"^ *```\w*.*\n(?:.*\n)*?^ *```$", page.read_text(), re.MULTILINE))
    assert [f"{page.name}:{block.line}: {block.kind}" for block in blocks if not explain_check(page, block)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_is_valid(page: Path) -> None:
    for block in read_blocks(page.read_text()):
        try:
            parse(block)
        except Exception as error:
            raise AssertionError(f"{page.name}:{block.line}: {error}") from error


@pytest.mark.parametrize("page", PAGES)
def test_the_shell_accepts_every_block_of_a_page(page: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("this machine has no bash")
    texts = [block.text for block in read_blocks(page.read_text()) if block.kind == "sh"]
    # In functions, so that one shell reads them all and runs none.
    script = "".join(f"block_{number}() {{\n:\n{text}\n}}\n" for number, text in enumerate(texts))
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_every_plan_names_a_page_and_tests_that_read_it() -> None:
    plans = read_plans()
    for name, plan in plans.pages.items():
        assert list(ROOT.glob(name)), name
        for test in plan.tested_by.values():
            assert Path(name).name in (ROOT / test).read_text() or name.endswith("*"), (name, test)
        for source in plan.files.values():
            assert (ROOT / source).exists(), source
    for test in plans.tested_by.values():
        assert (ROOT / test).exists(), test


def build_output(shown: str, printed: str, *, logged: bool = False, kind: str = "text") -> Output:
    return Output(Block(kind, shown, {}, "", 0, 0, 0), printed, logged)


@pytest.mark.parametrize(
    ("shown", "printed", "logged"),
    [
        ("run 01a1f09f932770008046a7e6157448fc succeeded after 1ms", f"run {'a' * 32} succeeded after 2.5s", False),
        ("A  NEXT\nx  in 2.9s", "A   NEXT\nx   in 10s", False),
        ("first\n…\nlast", "first\nsecond\nthird\nlast", False),
        ("first\n…", "first\nsecond\nthird", False),
        ("… MiB free, all well", "75,467 MiB free, all well", False),
        ("  dashboard http://127.0.0.1:7070/\n", "21:00:00 [info] dashboard=http://127.0.0.1:7070/", True),
        ("20:00:00 [info] run failed task=a error='KeyError: b'", "failed: a\nKeyError: b", True),
    ],
)
def test_outputs_that_differ_in_ids_times_and_layout_are_alike(shown: str, printed: str, logged: bool) -> None:
    assert find_difference(build_output(shown, printed, logged=logged)) == ""


@pytest.mark.parametrize(
    ("shown", "printed", "logged"),
    [
        ("run X succeeded", "run X failed", False),
        ('"welcome, user 42"', '"welcome, user 43"', False),
        ("first\n…\nlast", "first\nsecond", False),
        ("  dashboard http://127.0.0.1:7070/\n", "started", True),
        ("task=a error='KeyError: b'", "task=a succeeded", True),
        ("task=a attempt=1/4", "task=a attempt=1/6", True),
        ("mainspring: ready", "mainspring: http", True),
    ],
)
def test_other_outputs_differ(shown: str, printed: str, logged: bool) -> None:
    assert find_difference(build_output(shown, printed, logged=logged))


def test_versions_and_processes_are_masked() -> None:
    assert mask("mainspring 0.1.0\n") == "mainspring VERSION"
    assert mask("worker host-1:1481 left at 21:43:08") == "worker PROCESS left at TIME"


@pytest.mark.parametrize(
    ("shown", "printed", "alike"),
    [
        ('{"a": 1, "…": "…"}', '{"a": 1, "b": 2}', True),
        ('{"a": 1}', '{"a": 1, "b": 2}', False),
        ('{"a": "…"}', '{"a": 7}', True),
        ('["x", "…"]', '["x", "y", "z"]', True),
        ('{"id": "01a1f09f932770008046a7e6157448fc"}', f'{{"id": "{"b" * 32}"}}', True),
        ('{"id": "01a1f09f932770008046a7e6157448fc"}', '{"id": "short"}', False),
    ],
)
def test_json_is_compared_by_its_values(shown: str, printed: str, alike: bool) -> None:
    assert (find_difference(build_output(shown, printed, kind="json")) == "") is alike


def test_ids_of_a_page_stand_for_the_printed_ones() -> None:
    shown, printed = "01a1f09f932770008046a7e6157448fc", "b" * 32
    output = build_output(f"run {shown} succeeded after 1ms", f"run {printed} succeeded after 2.5s")
    assert find_ids(output) == {shown: printed}
