"""The code and the command of the limits page work."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from mainspring.cli.fields import read_limits
from mainspring.core.model.base.errors import Invalid
from mainspring.testing import TestScheduler
from tests.support.doc_blocks import write_blocks

PAGE = Path(__file__).parents[2] / "docs/guides/rate-limits.md"


async def test_the_code_of_the_limits_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    [path] = write_blocks(PAGE, tmp_path)
    tasks = importlib.import_module(path.rename(tmp_path / "limit_tasks.py").stem)
    async with TestScheduler(tasks.app) as s:
        for _ in range(5):
            await tasks.sync_orders.submit("acme")
            await tasks.render.submit(1)
        assert s.runs(tasks.sync_orders).blocked == 2
        await tasks.charge.submit(1)
        first = await tasks.order_a_report("acme")
        await s.advance("3s")
        assert await tasks.order_a_report("acme") == first
        await s.advance("3s")
        assert "report of acme" not in tasks.called
        await s.advance("3s")
        assert tasks.called.count("report of acme") == 1
        assert tasks.called.count("acme") == 5


def test_the_command_and_the_code_of_the_limits_page_are_equivalent() -> None:
    [command] = re.findall(r"^mainspring (jobs submit .*)$", PAGE.read_text(), re.MULTILINE)
    words = shlex.split(command)
    given = [words[at + 1] for at, word in enumerate(words) if word == "--limit"]
    assert read_limits(given) == [
        {"key": "customer:{payload.customer}", "most": 3},
        {"key": "shop-api", "most": 100, "per": "1m"},
    ]


@pytest.mark.parametrize("text", ["api", "api=", "=3", "api=many", "api=3x", "api=-1"])
def test_a_malformed_limit_option_is_rejected(text: str) -> None:
    with pytest.raises(Invalid, match="--limit"):
        read_limits([text])


def test_a_limit_key_may_contain_an_equals_sign() -> None:
    assert read_limits(["a=b=3"]) == [{"key": "a=b", "most": 3}]
