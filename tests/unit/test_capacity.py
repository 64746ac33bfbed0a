"""Capacity planning: what a given load needs, by worked examples."""

import tomllib
from importlib import resources
from math import ceil

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, HOUR, MILLISECOND, SECOND
from mainspring.core.model.base.quantities import (
    format_count,
    format_size,
    parse_count,
    parse_peak,
    parse_per_day,
    parse_size,
)
from mainspring.features.capacity.costs import Costs, Load, Prices
from mainspring.features.capacity.model import compute_capacity, compute_cost_per_job

COSTS = Costs(
    where="made up",
    seen_per_second=30_000,
    api_us=200,
    scheduler_us=1,
    worker_us=20,
    server_us=40,
    server_api_us=40,
    kept_table_bytes=300,
    kept_index_bytes=150,
    kept_payload=100,
    waiting_bytes=800,
    waiting_payload=500,
    log_bytes=1_100,
    api_mb=100,
    scheduler_mb=50,
    worker_mb=50,
)
PRICES = Prices(
    where="made up",
    node=100,
    node_cores=4,
    node_memory_gb=16,
    database=1_000,
    database_cores=10,
    # Large enough not to matter, except where a test replaces it.
    database_disk_gb=1e6,
    storage_gb=0.1,
    traffic_gb=0.01,
)


def estimate(**load: float) -> dict[str, float]:
    found = compute_capacity(msgspec.convert(load, Load), COSTS, PRICES)
    return {figure.name: figure.value for section in found.sections for figure in section.figures}


@pytest.mark.parametrize(
    ("jobs_a_day", "each_second"),
    [
        ("10k", 0.12),
        ("100k", 1.2),
        ("1M", 12),
        ("10M", 116),
        ("100M", 1_157),
        ("1B", 11_574),
    ],
)
def test_jobs_per_day_are_converted_to_jobs_per_second(jobs_a_day: str, each_second: float) -> None:
    assert estimate(jobs_per_day=parse_per_day(jobs_a_day, ""))["jobs_per_second"] == pytest.approx(
        each_second, rel=0.04
    )


def test_the_peak_rate_is_computed_before_rounding() -> None:
    found = estimate(jobs_per_day=1e6, peak=3)
    assert round(found["jobs_per_second"]) * 3 == 36
    assert found["peak_jobs_per_second"] == pytest.approx(34.7, abs=0.1)


def test_the_history_includes_rows_and_indexes_around_the_payloads() -> None:
    found = estimate(jobs_per_day=1e8, payload=500, retention=30 * DAY)
    assert found["payload_per_day"] == 50e9
    # Payload of 500 + row of 200 + indexes of 150, for thirty days.
    assert found["kept_per_job"] == 850
    assert found["history"] == 850 * 1e8 * 30


def test_a_peak_is_given_as_a_rate_or_as_a_factor() -> None:
    mean = 1e8 / 86_400
    assert round(mean, -2) == 1_200
    found = estimate(jobs_per_day=1e8, peak=parse_peak("10k/s", "--peak", mean))
    assert found["peak_jobs_per_second"] == pytest.approx(10_000)
    assert estimate(jobs_per_day=1e8, peak=parse_peak("10x", "--peak", mean))["peak_jobs_per_second"] == pytest.approx(
        11_574, abs=1
    )


@pytest.mark.parametrize(
    ("rate", "database_cores", "servers", "apis", "schedulers"),
    [
        # Per job 80 µs of database and 200 µs of API time, at 80 % utilization; a scheduler per 5,000 jobs/s.
        ("10k/s", 1, 1, 3, 3),
        ("50k/s", 5, 1, 13, 11),
        ("1M/s", 100, 10, 250, 202),
    ],
)
def test_servers_apis_and_schedulers_grow_with_the_rate(
    rate: str, database_cores: float, servers: int, apis: int, schedulers: int
) -> None:
    found = estimate(jobs_per_day=parse_per_day(rate, ""))
    assert found["database_cores"] == pytest.approx(database_cores)
    assert (found["database_servers"], found["api_processes"]) == (servers, apis)
    assert found["schedulers"] == schedulers


def test_a_note_recommends_a_sharded_store_for_a_million_jobs_a_second() -> None:
    found = compute_capacity(Load(jobs_per_day=parse_per_day("1M/s", "")), COSTS, PRICES)
    assert any("a store over 10 servers" in note for note in found.notes)


def test_a_history_larger_than_one_disk_needs_more_servers() -> None:
    """At a million jobs a second, a week of history takes 516 TB, although ten servers have enough cores."""
    prices = msgspec.structs.replace(PRICES, database_disk_gb=16_000)
    found = compute_capacity(Load(jobs_per_day=parse_per_day("1M/s", "")), COSTS, prices)
    servers = ceil(found.value("database") / 0.8 / 16e12)
    assert found.value("database_servers") == servers > 10
    assert any(f"a store over {servers} servers" in note for note in found.notes)


def test_every_process_opens_its_connections_to_each_server() -> None:
    found = compute_capacity(Load(jobs_per_day=1e6 * 86_400, takes=10 * MILLISECOND), COSTS, PRICES)
    servers, connections = found.value("database_servers"), found.value("connections")
    assert servers > 1
    assert connections > 500
    [figure] = [one for section in found.sections for one in section.figures if one.name == "connections"]
    assert figure.label == "connections to each database, at most"
    assert figure.how.endswith(f"× {servers:,.0f} = {connections * servers:,.0f} in all")
    assert any(note.startswith(f"{connections:,.0f} connections to one server") for note in found.notes)


def test_a_note_marks_a_rate_beyond_the_measured_maximum_as_computed() -> None:
    seen, beyond = (
        compute_capacity(Load(jobs_per_day=parse_per_day(rate, "")), COSTS, PRICES).notes for rate in ("10k/s", "50k/s")
    )
    assert not any("is reckoned" in note for note in seen)
    assert "50,000/s on one server is reckoned: the most that was measured is 30,000/s" in beyond


@pytest.mark.parametrize(("monthly", "each"), [(7_130, 0.00024), (3_000, 0.0001)])
def test_the_cost_per_job_is_the_monthly_cost_divided_by_the_jobs(monthly: float, each: float) -> None:
    assert round(compute_cost_per_job(monthly, 1e6), 5) == each


def test_the_monthly_cost_is_the_sum_of_its_parts() -> None:
    found = estimate(jobs_per_day=1e6, peak=3)
    # Three machines and a database with its standby, however small the load is.
    assert found["machines_cost"] == 300
    assert found["databases_cost"] == 2_000
    assert found["disk_cost"] == pytest.approx(found["disk"] / 1e9 * 0.1)
    assert found["monthly_cost"] == pytest.approx(
        300 + 2_000 + found["disk_cost"] + found["traffic_cost"] + found.get("other_cost", 0)
    )
    assert found["cost_per_job"] == pytest.approx(found["monthly_cost"] / 30e6)


def test_other_costs_are_included_in_the_cost_per_job() -> None:
    paid = msgspec.structs.replace(PRICES, node=0, database=0, storage_gb=0, traffic_gb=0, other=7_130)
    found = compute_capacity(Load(jobs_per_day=1e6, peak=3), COSTS, paid)
    assert round(found.value("cost_per_job"), 5) == 0.00024


def test_36_jobs_a_second_of_17_8_seconds_need_800_workers_of_one_slot() -> None:
    found = estimate(jobs_per_day=1e6, peak=3.11, takes=round(17.8 * SECOND), slots=1)
    assert found["workers"] == pytest.approx(800, rel=0.02)


def test_retries_add_attempts_and_rows_but_no_payload() -> None:
    once, again = estimate(jobs_per_day=1e8), estimate(jobs_per_day=1e8, attempts=1.5)
    assert again["kept_per_job"] - once["kept_per_job"] == (200 + 150) / 2
    assert again["peak_attempts_per_second"] == once["peak_attempts_per_second"] * 1.5
    assert again["payload_per_day"] == once["payload_per_day"]


def test_workers_are_sized_by_slots_or_by_cpu_whichever_needs_more() -> None:
    quick = estimate(jobs_per_day=parse_per_day("1k/s", ""), takes=10 * MILLISECOND)
    slow = estimate(jobs_per_day=parse_per_day("1k/s", ""), takes=8 * SECOND)
    heavy = estimate(jobs_per_day=parse_per_day("1k/s", ""), takes=10 * MILLISECOND, work=8 * MILLISECOND)
    assert quick["workers"] == 2
    assert slow["workers"] == 1_000 * 8 / (100 * 0.8)
    # 8 ms and 20 µs per job keep 8.02 cores busy, at 80 % utilization.
    assert heavy["workers"] == 11


def test_scheduled_runs_take_disk_space_of_their_own() -> None:
    found = estimate(jobs_per_day=1, payload=1_000, waiting=1e8)
    assert found["waiting"] == (800 - 500 + 1_000) * 1e8


def test_memory_of_idle_workers_determines_the_number_of_machines() -> None:
    found = estimate(jobs_per_day=parse_per_day("10/s", ""), takes=2 * HOUR + 800 * SECOND)
    assert found["workers"] == 1_000
    assert found["nodes"] == ceil((1_000 * 50 + 2 * 100 + 3 * 50) / 1_000 / 0.8 / 16)


def test_replication_traffic_grows_with_the_number_of_standbys() -> None:
    none, one, two = (estimate(jobs_per_day=1e8, standbys=number) for number in (0, 1, 2))
    assert none["replication_traffic"] == 0
    assert two["replication_traffic"] == 2 * one["replication_traffic"]
    assert two["disk"] == 3 * none["disk"]


def test_sqlite_needs_one_process_and_a_note_says_when_it_cannot_keep_up() -> None:
    embedded = msgspec.structs.replace(COSTS, embedded=True)
    small = compute_capacity(Load(jobs_per_day=1e6), embedded, PRICES)
    large = compute_capacity(Load(jobs_per_day=1e9), embedded, PRICES)
    assert (small.value("nodes"), small.value("database_servers"), small.value("databases_cost")) == (1, 0, 0)
    assert small.value("replication_traffic") == 0
    assert not any("cannot keep up" in note for note in small.notes)
    assert any("cannot keep up" in note for note in large.notes)


@given(
    jobs=st.floats(1, 1e12),
    peak=st.floats(1, 1_000),
    attempts=st.floats(1, 20),
    payload=st.floats(0, 1e6),
    days=st.floats(0, 3_650),
)
def test_a_larger_load_never_costs_less(jobs: float, peak: float, attempts: float, payload: float, days: float) -> None:
    def bill(**more: float) -> float:
        load = {"jobs_per_day": jobs, "peak": peak, "attempts": attempts, "payload": payload, "retention": days * DAY}
        for name, factor in more.items():
            load[name] *= factor
        return estimate(**{**load, "retention": round(load["retention"])})["monthly_cost"]

    least = bill() * (1 - 1e-9)
    assert all(bill(**{name: 2}) >= least for name in ("jobs_per_day", "peak", "attempts", "payload", "retention"))


@given(st.floats(1, 1e12), st.floats(1, 100), st.floats(1, 10))
def test_every_value_explains_how_it_is_computed(jobs: float, peak: float, attempts: float) -> None:
    found = compute_capacity(Load(jobs_per_day=jobs, peak=peak, attempts=attempts, waiting=jobs), COSTS, PRICES)
    for section in found.sections:
        for figure in section.figures:
            assert figure.how
            assert figure.shown


def test_the_shipped_cost_and_price_files_are_valid_and_name_their_origin() -> None:
    files = resources.files("mainspring.features.capacity.figures")
    costs = msgspec.convert(tomllib.loads((files / "costs.toml").read_text("utf-8")), Costs)
    prices = msgspec.convert(tomllib.loads((files / "prices.toml").read_text("utf-8")), Prices)
    assert "docs/design/benchmark.md" in costs.where
    assert "example" in prices.where
    assert costs.index_factor > 1


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), ("1.5k", 1_500), ("100M", 1e8), ("2B", 2e9), ("1_000", 1_000), ("1,000", 1_000), (" 5 k ", 5_000)],
)
def test_a_count_is_parsed_with_its_suffix_and_separators(text: str, value: float) -> None:
    assert parse_count(text, "--jobs-per-day") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("500B", 500), ("500", 500), ("2kB", 2_000), ("2KB", 2_000), ("1KiB", 1_024), ("1MiB", 1_048_576), ("0", 0)],
)
def test_a_kilobyte_is_a_thousand_bytes_and_a_kibibyte_1_024(text: str, value: float) -> None:
    assert parse_size(text, "--payload") == value


@pytest.mark.parametrize(
    ("text", "value"), [("100M", 1e8), ("1/s", 86_400), ("5k/min", 7_200_000), ("2M/day", 2e6), ("1.5/h", 36)]
)
def test_a_rate_is_converted_to_jobs_per_day(text: str, value: float) -> None:
    assert parse_per_day(text, "--jobs-per-day") == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "M", "-1", "1e400", "1 million", "5/week", "10x", "1..2", "9" * 50, "NaN", "1/"])
def test_an_invalid_number_of_jobs_is_rejected(text: str) -> None:
    with pytest.raises(Invalid, match=r"--jobs-per-day: .* is (not|out)"):
        parse_per_day(text, "--jobs-per-day")


@pytest.mark.parametrize("text", ["500b", "5 bytes", "1QB", "-5B", "x"])
def test_an_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(Invalid, match=r"--payload: .* is not a size"):
        parse_size(text, "--payload")


@pytest.mark.parametrize("text", ["0.5x", "1/s", "x", "10y", "-3x"])
def test_an_invalid_peak_or_one_below_the_mean_is_rejected(text: str) -> None:
    with pytest.raises(Invalid, match="--peak"):
        parse_peak(text, "--peak", 12)


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (0.1157, "0.12"), (11.574, "11.6"), (1157.4, "1,157"), (1e8, "100 M")]
)
def test_counts_are_formatted_with_significant_digits_only(value: float, shown: str) -> None:
    assert format_count(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(0, "0 B"), (500, "500 B"), (50e9, "50 GB"), (2.562e12, "2.56 TB")])
def test_sizes_are_formatted_with_their_unit(value: float, shown: str) -> None:
    assert format_size(value) == shown


@pytest.mark.parametrize(
    ("load", "field"),
    [
        ({"jobs_per_day": 0.0}, "--jobs-per-day"),
        ({"attempts": 0.9}, "--attempts"),
        ({"attempts": float("nan")}, "--attempts"),
        ({"attempts": float("inf")}, "--attempts"),
        ({"scheduled": 2.0}, "--scheduled"),
        ({"scheduled": float("nan")}, "--scheduled"),
    ],
)
def test_an_impossible_load_is_rejected(load: dict[str, float], field: str) -> None:
    with pytest.raises(Invalid, match=field):
        msgspec.convert({"jobs_per_day": 1.0} | load, Load)
