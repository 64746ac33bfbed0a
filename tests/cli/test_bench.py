"""The benchmark runs and prints its measurements. Their values need a quiet machine and are not tested."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from bench import command, suite
from bench.api.followers import Follower
from bench.api.load import Connection
from bench.api.submit import compare
from bench.engine.full_cycle import LostOrDoubled
from bench.figures import median_of_rounds, number, percentile, spread
from bench.report import ROWS, compare_with_limits, limits
from bench.sites import local_broker
from bench.sizes import PAYLOAD, QUICK, Sizes, scaled
from bench.stamps import Stamps
from bench.tasks import RECORD, app
from mainspring.cli.bench import load_benchmark
from mainspring.core.model.base.errors import Invalid
from mainspring.features.capacity.measured_costs import BENCHMARK_PAYLOAD


def bench(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "mainspring", "bench", *arguments, "--quick"],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_json_is_one_object_on_stdout_and_progress_goes_to_stderr(tmp_path: Path) -> None:
    done = bench(
        tmp_path, "--store", str(tmp_path), "--json", "--only", "submit,drain,policies,idle", "--scale", "0.02"
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["store"] == "sqlite"
    assert figures["quick"] is True
    assert figures["failed"] == {}
    for key in (
        "drain_jobs_per_s",
        "policy_plain_jobs_per_s",
        "policy_limit_jobs_per_s",
        "policy_rate_jobs_per_s",
        "policy_ordered_jobs_per_s",
        "policy_dependent_jobs_per_s",
        "policy_unique_jobs_per_s",
        "submit_single_jobs_per_s",
        "submit_concurrent_jobs_per_s",
        "submit_batch_jobs_per_s",
        "idle_latency_p50_ms",
        "idle_latency_p99_ms",
    ):
        # On a busy machine a rate in such a short window may round to 0.
        assert figures[key] >= 0, key
    assert figures["memory_mb"]["everything"] > 0
    assert figures["machine"]["cores"] > 0
    assert "drain: working off" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.postgres
def test_on_postgres_the_benchmark_runs_processes_in_its_own_schema(tmp_path: Path, postgres_database: str) -> None:
    done = bench(tmp_path, "--store", postgres_database, "--json", "--only", "full,herd", "--scale", "0.02")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["failed"] == {}
    # On a busy machine a rate in such a short window may round to 0.
    assert figures["full_cycle_jobs_per_s"] >= 0
    assert figures["bare_sql_jobs_per_s"] >= 0
    assert figures["herd_5000_lateness_p99_ms"] > 0
    assert figures["server"]["fsync"] in ("on", "off")


@pytest.mark.slow
@pytest.mark.postgres
def test_an_idle_worker_is_measured_with_each_number_of_queues(tmp_path: Path, postgres_database: str) -> None:
    done = bench(tmp_path, "--store", postgres_database, "--json", "--only", "queues", "--scale", "0.1")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["failed"] == {}
    for count in (1, 6, 20, 50):
        assert figures[f"idle_worker_{count}_queues_processor_percent"] >= 0
        assert figures[f"idle_worker_{count}_queues_transactions_per_s"] >= 0


@pytest.mark.slow
@pytest.mark.postgres
def test_a_broker_named_without_an_address_is_started_for_the_benchmark(
    tmp_path: Path, postgres_database: str, address_of: Callable[[str], str]
) -> None:
    # Skip where Redis is not installed.
    address_of("redis")
    options = ("--only", "idle", "--scale", "0.02", "--dispatch", "store,redis")
    done = bench(tmp_path, "--store", postgres_database, "--json", *options)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert list(figures) == ["postgres", "postgres fed by redis"]
    assert all(result["idle_latency_p50_ms"] > 0 for result in figures.values())


def test_a_server_started_for_the_benchmark_stops_afterwards(address_of: Callable[[str], str]) -> None:
    address_of("redis")
    with local_broker.address_of("redis") as address, redis.Redis.from_url(address) as client:
        assert client.ping()
    with redis.Redis.from_url(address) as client, pytest.raises(redis.ConnectionError):
        client.ping()


def test_without_a_checkout_the_benchmark_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"not part of the installed package.*make bench"):
        load_benchmark("command", tmp_path)


def test_capacity_counts_with_the_size_of_the_payload_that_is_measured() -> None:
    assert len(PAYLOAD) == BENCHMARK_PAYLOAD


def test_outside_of_a_checkout_a_broker_needs_an_address(tmp_path: Path) -> None:
    with (
        pytest.raises(Invalid, match=r"kafka can be started from a checkout only.*give its address"),
        local_broker.address_of("kafka", tmp_path),
    ):
        pass
    with local_broker.address_of("kafka://a", tmp_path) as address:
        assert address == "kafka://a"


def test_a_broker_that_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tools/services").mkdir(parents=True)
    (tmp_path / "tools/services/__main__.py").write_text("import sys; sys.exit('no such package\\nand more')")
    with (
        pytest.raises(Invalid, match=r"kafka cannot be started here: no such package \("),
        local_broker.address_of("kafka", tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    ("broker", "shown"),
    [
        ("redis", "redis"),
        ("redis://:hush@a", "redis"),
        ("amqps://me:hush@a,b/vhost?kind=quorum&ssl_keyfile=/hush.pem", "amqps kind=quorum"),
        ("kafka://me:hush@a/?ssl_key_password=hush&topics={queue}", "kafka topics={queue}"),
    ],
)
def test_the_name_of_a_broker_has_no_secrets(broker: str, shown: str) -> None:
    assert command.broker_name(broker) == shown


@pytest.mark.slow
def test_the_api_benchmark_checks_that_every_accepted_job_is_stored(tmp_path: Path) -> None:
    done = bench(tmp_path, "api", "--store", str(tmp_path), "--json", "--only", "post,batch", "--scale", "0.1")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    # A lost or doubled job would be an entry here.
    assert figures["failed"] == {}
    assert figures["api_post_accepted"] >= 64
    assert figures["api_batch_accepted"] >= 4_000
    assert figures["api_batch_accepted"] % 1_000 == 0
    assert figures["api_post_p99_ms"] >= figures["api_post_p50_ms"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_api_benchmark_covers_idempotency_keys_and_followers(tmp_path: Path) -> None:
    done = bench(tmp_path, "api", "--store", str(tmp_path), "--json", "--only", "key,followers", "--scale", "0.05")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["failed"] == {}
    assert figures["api_keys"] == 5
    assert figures["api_same_key_jobs_per_key"] == 1
    assert figures["api_followers"] == 50
    assert figures["api_followers_told_of_each"] >= 64
    assert figures["api_followers_store_readers"] == 1


def test_an_unknown_suite_is_refused_with_a_list_of_suites(tmp_path: Path) -> None:
    done = bench(tmp_path, "speed")
    assert done.returncode == 2
    assert "suite: there is none called 'speed' (engine, api)" in done.stderr


def test_each_suite_has_its_own_measurements() -> None:
    assert [item.name for item in suite.choose("api", [], quick=True)] == ["post", "batch", "key", "followers"]
    with pytest.raises(Invalid, match="no measurement 'full'"):
        suite.choose("api", ["full"], quick=True)


def test_a_lost_or_doubled_job_fails_the_benchmark() -> None:
    compare(["b", "a"], ["a", "b"])
    for accepted in (["a"], ["a", "b", "c"], ["a", "c"], ["a", "b", "b"]):
        with pytest.raises(LostOrDoubled):
            compare(accepted, ["a", "b"])


async def test_a_response_may_arrive_in_any_two_parts() -> None:
    answers = []
    connection = Connection(lambda _, status, body: answers.append((status, body)))
    whole = b"HTTP/1.1 201 Created\r\nserver: x\r\ncontent-length: 5\r\ndate: y\r\n\r\nhello"
    for cut in range(1, len(whole)):
        connection.data_received(whole[:cut])
        connection.data_received(whole[cut:])
    assert answers == [(201, b"hello")] * (len(whole) - 1)


async def test_a_follower_counts_jobs_of_events_in_any_two_parts() -> None:
    event = b'id: 7\nevent: run.submitted\ndata: {"time":"t","tenant":"default","count":12,"runIds":["'
    event += b"x" * 500 + b'"]}\n\n'
    other = event.replace(b"submitted", b"succeeded")
    stream = b"HTTP/1.1 200 OK\r\n\r\nid: 1\nevent: hello\ndata: {}\n\n" + event + other + event
    for cut in range(1, len(stream)):
        follower = Follower()
        follower.data_received(stream[:cut])
        follower.data_received(stream[cut:])
        assert follower.told == 24, cut
        assert follower.welcome.done()


def test_an_unknown_measurement_is_refused_with_a_list_of_measurements(tmp_path: Path) -> None:
    done = bench(tmp_path, "--store", "sqlite", "--only", "speed")
    assert done.returncode == 2
    assert "--only: there is no measurement 'speed' (full, drain," in done.stderr


def test_a_percentile_is_the_nearest_rank() -> None:
    samples = list(range(1, 101))
    assert percentile(samples, 50) == 50
    assert percentile(samples, 99) == 99
    assert percentile(samples, 100) == 100
    assert percentile(samples, 0) == 1
    assert percentile([7.0], 99) == 7.0
    assert percentile([3, 1, 2], 50) == 2


def test_a_percentile_of_no_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)
    with pytest.raises(ValueError, match="not a percentage"):
        percentile([1], 101)


def test_a_spread_names_its_percentiles() -> None:
    assert spread("late", [1.0, 2.0, 30.0]) == {"late_p50_ms": 2.0, "late_p99_ms": 30.0, "late_max_ms": 30.0}


def test_rounds_are_merged_by_the_median_of_each_key() -> None:
    merged = median_of_rounds(
        [
            {"rate": 10, "words": "a", "memory": {"worker": 1.0}},
            {"rate": 30, "words": "b", "memory": {"worker": 3.0}},
            {"rate": 20, "words": "c", "memory": {"worker": 2.0}, "extra": 5},
        ]
    )
    assert merged == {"rate": 20, "words": "c", "memory": {"worker": 2.0}, "extra": 5}


def test_numbers_have_three_significant_digits() -> None:
    assert [number(value) for value in (1234567, 12.34, 1.234, 100, 0)] == ["1,234,567", "12.3", "1.23", "100", "0"]


def test_a_quick_benchmark_skips_long_measurements_unless_they_are_named() -> None:
    usual = [item.name for item in suite.choose("engine", [], quick=False)]
    assert {"full", "drain", "crons", "claim"} <= set(usual)
    assert not {"soak", "failover"} & set(usual)
    assert not {"crons", "queues"} & {item.name for item in suite.choose("engine", [], quick=True)}
    assert [item.name for item in suite.choose("engine", ["failover", "crons"], quick=True)] == ["crons", "failover"]
    with pytest.raises(Invalid, match="no measurement"):
        suite.choose("engine", ["speed"], quick=True)


def test_the_estimate_of_a_quick_benchmark_is_about_a_minute() -> None:
    assert suite.estimate(suite.choose("engine", [], quick=True), QUICK, embedded=False) < 75


def test_scaled_sizes_have_minimums() -> None:
    small = scaled(QUICK, 0.0001)
    assert small.drain > 0
    assert small.idle_samples >= 10
    assert small.scale == 0.0001
    assert scaled(Sizes(), 1) == Sizes()


def test_sqlite_has_its_own_limits() -> None:
    rows = {row.key: row for row in ROWS}
    full, idle = rows["full_cycle_jobs_per_s"], rows["idle_latency_p99_ms"]
    assert limits(full, sqlite=False) == (12_000, 20_000)
    assert limits(full, sqlite=True) == (10_000, 25_000)
    assert limits(idle, sqlite=True) == (None, None)
    assert "misses" in compare_with_limits(full, 11_000, 12_000, 20_000)
    assert "holds" in compare_with_limits(full, 13_000, 12_000, 20_000)
    assert "goal" in compare_with_limits(full, 21_000, 12_000, 20_000)
    assert "goal" in compare_with_limits(idle, 4.0, 10, 5)
    assert compare_with_limits(idle, 4.0, None, None) == ""


def test_stamps_of_every_process_are_read_since_the_last_clear(tmp_path: Path) -> None:
    stamps = Stamps(tmp_path)
    first = RECORD.pack(bytes(16), 1_000, 3_000)
    (tmp_path / "12.stamps").write_bytes(first)
    assert [(stamp.pid, stamp.late_ms) for stamp in stamps.read()] == [(12, 2.0)]
    stamps.clear()
    assert stamps.count() == 0
    # An incomplete record is not read yet.
    (tmp_path / "12.stamps").write_bytes(first + first + first[:5])
    (tmp_path / "13.stamps").write_bytes(first)
    assert stamps.count() == 2
    assert sorted(stamp.pid for stamp in stamps.read()) == [12, 13]


def test_the_benchmark_tasks_accept_its_payload() -> None:
    handlers = app.handlers()
    assert {"nothing", "stamp", "nap"} <= set(handlers)
    assert set(json.loads(PAYLOAD)) == {"user_id", "email", "note"}
