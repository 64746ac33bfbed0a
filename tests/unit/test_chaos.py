"""The parts of the chaos harness that can be wrong without anybody noticing: the link, the clocks, the table."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tools.chaos import report
from tools.chaos.catalogue import FAULTS
from tools.chaos.engines import FEEDERS
from tools.chaos.export import Clocks
from tools.chaos.link import Link
from tools.chaos.run import Outcome
from tools.judge.rules import RULES

DOCS = Path(__file__).parents[2] / "docs"
PAGE, FEEDERS_PAGE = DOCS / "operations/failover.md", DOCS / "explanation/engines.md"


class Echo:
    """A server that answers what it is sent, and remembers it."""

    def __init__(self) -> None:
        self.heard = b""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1_000):
            self.heard += data
            writer.write(data)
        writer.close()


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def link(echo: Echo) -> AsyncIterator[Link]:
    async with await asyncio.start_server(echo.answer, "127.0.0.1", 0) as server:
        link = Link("127.0.0.1", server.sockets[0].getsockname()[1])
        await link.open()
        yield link
        await link.close()


async def heard(echo: Echo, data: bytes) -> None:
    async with asyncio.timeout(5):
        while echo.heard != data:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_silent_link_delivers_later_and_in_order(link: Link, echo: Echo) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"one")
    assert await reader.read(3) == b"one"
    link.silence("there")
    writer.write(b"two")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(3), 0.1)
    assert echo.heard == b"one"
    await link.open()
    assert await reader.read(3) == b"two"
    link.silence("back")
    writer.write(b"three")
    await heard(echo, b"onetwothree")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(5), 0.1)
    await link.open()
    assert await reader.read(5) == b"three"
    writer.close()


async def test_what_was_sent_arrives_although_the_sender_has_given_up(link: Link, echo: Echo) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"x")
    await reader.read(1)
    link.silence("there", "back")
    writer.write(b"late")
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.close()
    await link.open()
    await heard(echo, b"xlate")


async def test_a_cut_link_throws_everybody_out_and_lets_nobody_in(link: Link) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"x")
    await reader.read(1)
    await link.cut()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", link.port)
    writer.close()
    await link.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"y")
    assert await reader.read(1) == b"y"
    writer.close()


def test_a_stamp_gets_the_time_of_the_nearest_look() -> None:
    clocks = Clocks()
    clocks.look(1_000_000_000, 51_000_000_000)
    clocks.look(2_000_000_000, 52_000_100_000)
    assert clocks.time_of(500_000) == 50_500_000
    assert clocks.time_of(1_500_000) == 51_500_100
    assert clocks.time_of(9_000_000) == 59_000_100


def an_outcome(fault: str = "kill-scheduler", coordination: str = "store", *, rate: int = 2_000) -> Outcome:
    counts = dict.fromkeys(RULES, 0) | {"lost": 2, "stale": 1}
    felt = [["kill", 1_400_000, 1_700_000], ["kill", 900_000, 0], ["kill", 800_000, 2_500_000]]
    judgement = {"runs": 1_234, "ticks": 600, "felt": felt, "counts": counts, "sound": False}
    return Outcome(fault, coordination, 3, rate, 200, 7, 1, 12.5, judgement)


def test_every_rule_of_the_judge_has_its_column() -> None:
    for rule in RULES:
        outcome = an_outcome()
        outcome.judgement["counts"] = dict.fromkeys(RULES, 0) | {rule: 77}
        assert " 77 " in report.table([outcome]), rule


def test_the_table_replaces_what_is_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.publish(page, report.table([an_outcome()]))
    head, rule, row = page.read_text().split(report.BEGIN)[1].split(report.END)[0].strip().splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    words = "| kill-scheduler | store | 3 | 1,234 | 600 | 2 | 0 | 0 | 0 | 7 | 1 | 1.4 s | 1.7 s | 2.5 s |"
    assert row == words
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("\nafter\n")


def test_results_of_several_runs_make_one_table(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    results = report.Results(path)
    for outcome in (an_outcome("disk-full"), an_outcome(coordination="etcd"), an_outcome("kill-worker", rate=10)):
        results.add(outcome)
    results.add(an_outcome())
    results = report.Results(path)
    again = an_outcome(coordination="etcd")
    again.refused = 99
    results.add(again)
    rows = report.Results(path).of(repetitions=3, rate=2_000, crons=200)
    assert [(row.fault, row.coordination, row.refused) for row in rows] == [
        ("kill-scheduler", "store", 7),
        ("kill-scheduler", "etcd", 99),
        ("disk-full", "store", 7),
    ]
    assert report.Results(path).of(repetitions=4, rate=2_000, crons=200) == []
    assert results.seconds("disk-full", "store") == 12.5
    assert results.seconds("disk-full", "etcd") is None


def test_the_page_names_every_fault() -> None:
    for name, fault in FAULTS.items():
        text = (FEEDERS_PAGE if fault.engines == FEEDERS else PAGE).read_text()
        assert report.BEGIN in text
        assert f"`{name.removesuffix('-one-way')}`" in text, name
