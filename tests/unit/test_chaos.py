"""The parts of the chaos harness whose errors no chaos run would show: the link, the clocks, the table."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from tests.support.waiting import eventually
from tools.chaos import report
from tools.chaos.catalogue import FAULTS
from tools.chaos.ensembles import BROKERS
from tools.chaos.export import Clocks
from tools.chaos.link import BOTH, Link, Way
from tools.chaos.run import Outcome
from tools.judge.rules import RULES

DOCS = Path(__file__).parents[2] / "docs"
PAGE, BROKERS_PAGE = DOCS / "operate/failover.md", DOCS / "concepts/brokers.md"


class Echo:
    """A server that sends back what it receives, and remembers it."""

    def __init__(self) -> None:
        self.received = b""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1_000):
            self.received += data
            writer.write(data)
        writer.close()


class Flow(asyncio.Event):
    """One direction of a link. It counts the tasks that hold data back until the direction flows again."""

    def __init__(self) -> None:
        super().__init__()
        self.holding = 0

    async def wait(self) -> Literal[True]:
        self.holding += 1
        try:
            return await super().wait()
        finally:
            self.holding -= 1


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
def flows() -> dict[Way, Flow]:
    return {way: Flow() for way in BOTH}


@pytest.fixture
async def link(echo: Echo, flows: dict[Way, Flow]) -> AsyncIterator[Link]:
    async with await asyncio.start_server(echo.answer, "127.0.0.1", 0) as server:
        link = Link("127.0.0.1", server.sockets[0].getsockname()[1])
        link._flows = dict(flows)
        await link.open()
        yield link
        await link.close()


async def test_a_silent_link_holds_data_and_delivers_it_in_order_when_it_opens(
    link: Link, echo: Echo, flows: dict[Way, Flow]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"one")
    assert await reader.read(3) == b"one"
    link.silence("there")
    writer.write(b"two")
    await eventually(lambda: flows["there"].holding)
    assert echo.received == b"one"
    await link.open()
    assert await reader.read(3) == b"two"
    link.silence("back")
    writer.write(b"three")
    await eventually(lambda: flows["back"].holding)
    assert echo.received == b"onetwothree"
    answer = asyncio.create_task(reader.read(5))
    await asyncio.sleep(0)
    assert not answer.done()
    await link.open()
    assert await answer == b"three"
    writer.close()


async def test_data_sent_into_a_silent_link_arrives_even_if_the_sender_has_closed_the_connection(
    link: Link, echo: Echo, flows: dict[Way, Flow]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"x")
    await reader.read(1)
    link.silence("there", "back")
    writer.write(b"late")
    await writer.drain()
    await eventually(lambda: flows["there"].holding)
    writer.close()
    await link.open()
    await eventually(lambda: echo.received == b"xlate")


async def test_a_cut_link_closes_its_connections_and_refuses_new_ones(link: Link) -> None:
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


def test_a_timestamp_is_converted_by_the_nearest_clock_reading() -> None:
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


def test_every_rule_of_the_judge_has_a_column_in_the_table() -> None:
    for rule in RULES:
        outcome = an_outcome()
        outcome.judgement["counts"] = dict.fromkeys(RULES, 0) | {rule: 77}
        assert " 77 " in report.table([outcome]), rule


def test_publishing_replaces_the_text_between_the_markers_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.publish(page, report.table([an_outcome()]))
    head, rule, row = page.read_text().split(report.BEGIN)[1].split(report.END)[0].strip().splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    words = "| kill-scheduler | store | 3 | 1,234 | 600 | 2 | 0 | 0 | 0 | 7 | 1 | 1.4 s | 1.7 s | 2.5 s |"
    assert row == words
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("\nafter\n")


def test_results_of_several_chaos_runs_are_merged_into_one_table(tmp_path: Path) -> None:
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


def test_the_failover_and_broker_pages_name_every_fault() -> None:
    for name, fault in FAULTS.items():
        text = (BROKERS_PAGE if fault.tried_with == BROKERS else PAGE).read_text()
        assert report.BEGIN in text
        assert f"`{name.removesuffix('-one-way')}`" in text, name
