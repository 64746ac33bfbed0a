"""The comparison with other queues: its table and its chart. Values are not tested."""

import io
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console

from bench.figures import Figures
from bench.peers import __main__ as runner
from bench.peers import chart, record, report
from bench.peers.adapter import Peer, Programs
from bench.peers.report import Result
from tools.services.service import ServiceUnavailable

MARKED = "<!-- peers-bench: written by python -m bench.peers.record -->\n<!-- peers-bench: end -->\n"


def round_of(rate: int, processor: float, latency: float) -> Figures:
    return {
        "full_cycle_jobs_per_s": rate,
        "full_cycle_processor_us_per_job": {"client": processor, "server": 2 * processor},
        "idle_latency_p50_ms": latency,
    }


def result_of(**rounds: list[Figures]) -> Result:
    return Result(
        date="2026-11-20",
        machine={"cores": 2, "memory_gb": 24.0, "load_before": 0.1},
        server={"server_version": "15.4"},
        versions=dict.fromkeys(rounds, "1.0"),
        rounds=rounds,
    )


def print_table(result: Result) -> str:
    file = io.StringIO()
    Console(width=100, file=file).print(report.table(result))
    return " ".join(file.getvalue().split())


def words(drawn: str) -> list[str]:
    """The text of an SVG, from the top of the file."""
    root = ElementTree.fromstring(drawn)  # noqa: S314 - drawn here
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_the_table_has_medians_of_all_rounds() -> None:
    first = result_of(mainspring=[round_of(100, 10, 1), round_of(300, 30, 3)], river=[round_of(150, 20, 2)])
    second = result_of(mainspring=[round_of(200, 20, 2)])
    merged = report.merge([first, second])
    assert report.median(merged, "mainspring", "full_cycle_jobs_per_s") == 200
    assert report.median(merged, "mainspring", "full_cycle_processor_us_per_job") == 60
    assert report.median_parts(merged, "mainspring", "full_cycle_processor_us_per_job") == {"client": 20, "server": 40}
    assert report.median(merged, "river", "drain_jobs_per_s") is None
    printed = print_table(merged)
    assert "full cycle, jobs/s" in printed
    assert "drain" not in printed
    assert "| full cycle, processor time, µs | 60 (20 + 40) | 60 (20 + 40) |" in report.markdown(merged)


def test_the_table_names_what_failed_and_what_was_skipped() -> None:
    result = msgspec.structs.replace(
        result_of(mainspring=[round_of(1, 1, 1)]),
        failed={"river, drain, round 1": "2 submitted, 3 executions"},
        skipped={"pg-boss": "there is no npm"},
    )
    printed = print_table(result)
    assert "river, drain, round 1 failed: 2 submitted, 3 executions" in printed
    assert "pg-boss skipped: there is no npm" in printed


def test_the_bars_of_a_panel_are_proportional_and_the_best_is_first() -> None:
    drawn = chart.draw(result_of(mainspring=[round_of(100, 10, 1)], river=[round_of(400, 20, 4)]))
    shown = words(drawn)
    rate = shown.index("Full cycle, jobs per second")
    assert shown[rate + 2 : rate + 6] == ["river", "400", "mainspring", "100"]
    latency = shown.index("Idle latency, median, ms")
    assert shown[latency + 2 : latency + 6] == ["mainspring", "1", "river", "4"]
    root = ElementTree.fromstring(drawn)  # noqa: S314 - drawn here
    bars = [
        float(bar.attrib["width"]) for bar in root.iter("{http://www.w3.org/2000/svg}rect") if "rx" not in bar.attrib
    ]
    # Processor time: client and server of each. Then the two rates.
    assert bars[:4] == pytest.approx([bars[3] / 4, bars[3] / 2, bars[3] / 2, bars[3]], abs=0.2)
    assert bars[4] == pytest.approx(4 * bars[5], abs=0.3)


def test_a_run_that_is_not_representative_says_so() -> None:
    result = result_of(mainspring=[round_of(1, 1, 1)])
    assert not any("not representative" in line for line in words(chart.draw(result)))
    quick = report.merge([result, msgspec.structs.replace(result, representative=False)])
    assert any("not representative" in line for line in words(chart.draw(quick)))


def test_a_peer_without_its_tools_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> Programs:
        raise ServiceUnavailable("River is built of Go's modules, and there is no go")

    river = Peer(name="river", install=unavailable, unfinished="")
    monkeypatch.setitem(runner.PEERS, "river", river)
    said: list[str] = []
    programs, skipped = runner.install(["mainspring", "river"], said.append)
    assert list(programs) == ["mainspring"]
    assert skipped == {"river": "River is built of Go's modules, and there is no go"}
    assert said == ["river skipped: River is built of Go's modules, and there is no go"]


def test_pages_show_the_recorded_result_if_there_is_one_and_no_other() -> None:
    result = report.read(record.RECORDED) if record.RECORDED.exists() else None
    renew = "run python -m bench.peers.record docs/images/sources/peers.json"
    for name in record.PAGES:
        assert (record.ROOT / name).read_text("utf-8") == record.write(name, result), renew
    if result is None:
        assert not chart.IMAGE.exists()
    else:
        assert result.representative
        assert chart.IMAGE.read_text("utf-8") == chart.draw(result), renew


def test_a_recorded_result_replaces_the_one_before() -> None:
    empty = "# A page\n\n" + record.write_table(MARKED, None, (), "peers.svg")
    first = record.write_table(empty, result_of(mainspring=[round_of(100, 10, 1)]), (), "images/peers.svg")
    assert "![Processor time, rates and latencies of 1 job queues](images/peers.svg)" in first
    assert "| full cycle, jobs/s | 100 |" in first
    assert "Measured on 2026-11-20: one round, 2 cores" in first
    assert record.write_table(first, None, (), "peers.svg") == empty


def test_a_page_needs_one_place_for_the_table() -> None:
    with pytest.raises(ValueError, match="0 places for the table, not one"):
        record.write_table("# A page", result_of(mainspring=[round_of(1, 1, 1)]), (), "peers.svg")
