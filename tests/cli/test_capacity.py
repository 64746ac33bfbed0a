"""``mainspring capacity`` as a user sees it: with published costs, with measured ones, and with wrong options."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainspring.cli.main import application
from tests.cli.conftest import Refuse

#: An output of ``mainspring bench --json``.
BENCH = {
    "store": "postgres",
    "machine": {"cores": 8, "memory_gb": 32},
    "full_cycle_jobs_per_s": 60_000,
    "full_cycle_processor_us_per_job": {"submitter": 9.0, "scheduler": 2.0, "worker": 10.0, "server": 30.0},
    "full_cycle_kept_bytes_per_job": {"tables": 368, "indexes": 132},
    "full_cycle_log_bytes_per_job": 1_500,
    "bytes_per_scheduled_job": 900,
    "memory_mb_full_cycle": {"submitter": 50.0, "scheduler": 60.0, "worker": 65.0},
    "failed": {},
}
MINE = """
where = "a price list of November"
currency = "€"
node = 40
node_cores = 2
node_memory_gb = 8
database = 300
database_cores = 8
storage_gb = 0.2
traffic_gb = 0
"""


def capacity(*words: str) -> str:
    found = CliRunner().invoke(application, ["capacity", *words], catch_exceptions=False, env={"COLUMNS": "160"})
    assert found.exit_code == 0, found.stderr
    return found.stdout


def values(*words: str) -> dict[str, float]:
    found = json.loads(capacity(*words, "--json"))
    return {figure["name"]: figure["value"] for section in found["sections"] for figure in section["figures"]}


def test_every_number_is_shown_with_its_arithmetic() -> None:
    shown = capacity("--jobs-per-day", "100M", "--payload", "500B", "--peak", "10x", "--retention", "30d")
    assert "1,157/s  100 M a day ÷ 86,400 s" in shown
    assert "11,574/s  1,157/s × 10" in shown
    assert "50 GB  100 M jobs × 500 B" in shown
    assert "Costs of a job: published: PostgreSQL 15" in shown
    assert "example prices" in shown


def test_json_has_the_same_numbers() -> None:
    found = json.loads(capacity("--jobs-per-day", "1M", "--peak", "3x", "--json"))
    assert [section["title"] for section in found["sections"]] == ["RATES", "STORAGE", "PROCESSES", "TRAFFIC", "MONEY"]
    first = found["sections"][0]["figures"][0]
    assert first["name"] == "jobs_per_second"
    assert first["value"] == pytest.approx(11.574, abs=0.001)
    assert first["how"] == "1 M a day ÷ 86,400 s"


def test_prices_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(MINE)
    shown = capacity("--jobs-per-day", "1M", "--prices", str(tmp_path / "mine.toml"))
    # Three machines, and a database with its standby.
    assert "€120  3 × €40" in shown
    assert "€600  1 primaries × 2 copies × €300" in shown
    assert "Prices: a price list of November." in shown


def test_costs_are_read_from_a_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "now.json"
    file.write_text(json.dumps(BENCH))
    words = ("--jobs-per-day", "10k/s", "--peak", "1x", "--measured", str(file))
    found = values(*words)
    # 368 + 132 bytes with a payload of 168, as the benchmark's jobs have.
    assert found["kept_per_job"] == 368 - 168 + 132 + 500
    assert found["database_cores"] == pytest.approx((30 + 55) / 100 / 0.8)
    assert "measured here: postgres, 8 cores; the API's processor time as published" in capacity(*words)


def test_a_benchmark_without_server_time_uses_the_published_one(tmp_path: Path) -> None:
    file = tmp_path / "now.json"
    file.write_text(json.dumps(BENCH | {"full_cycle_processor_us_per_job": {"worker": 10.0}}))
    shown = capacity("--jobs-per-day", "1M", "--measured", str(file))
    assert "the server's (on another machine) processor time as published" in shown
    assert "43.4 µs" in shown


@pytest.mark.slow
def test_measure_runs_a_benchmark_on_the_store_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = capacity("--jobs-per-day", "1M", "--measure", "--scale", "0.02", "--store", "mainspring.db")
    assert "measured here: sqlite" in shown
    assert "not representative" in shown
    assert "SQLite is one process on one machine" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.postgres
def test_measure_runs_a_benchmark_on_postgres(postgres_database: str) -> None:
    words = ("--jobs-per-day", "1M", "--measure", "--scale", "0.02", "--store", postgres_database)
    shown = capacity(*words)
    assert "measured here: postgres" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--jobs-per-day", "many"), "--jobs-per-day: 'many' is not a number (for example 250k, 100M or 2B)"),
        (("--jobs-per-day", "0"), "--jobs-per-day: must be more than 0"),
        (("--jobs-per-day", "1M", "--payload", "5 apples"), "--payload: '5 apples' is not a size"),
        (("--jobs-per-day", "1M", "--peak", "0.1x"), "--peak: 0.1x is less than the mean (at least 1x)"),
        (("--jobs-per-day", "1M", "--retention", "soon"), "--retention: 'soon' is not a duration"),
        (("--jobs-per-day", "1M", "--attempts", "0"), "--attempts: 0 is not from 1 to 1,000"),
        (("--jobs-per-day", "1M", "--attempts", "nan"), "--attempts: nan is not from 1 to 1,000"),
        (("--jobs-per-day", "1M", "--prices", "none.toml"), "--prices: none.toml cannot be read: No such file"),
        (("--jobs-per-day", "1M", "--measured", "a.json", "--measure"), "--measure: contradicts --measured"),
        (("--jobs-per-day", "1M", "--store", "x.db"), "--store: requires --measure"),
        (("--jobs-per-day", "1M", "--measure", "--store", '["postgresql://a", "postgresql://b"]'), "sharded"),
        ((), "Missing option '--jobs-per-day'"),
    ],
)
def test_mistakes_are_one_line(refuse: Refuse, words: tuple[str, ...], message: str) -> None:
    assert message in refuse("capacity", *words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node = ", "Invalid value"),
        (MINE.replace("node_cores = 2", "node_cores = 0"), "`int` >= 1"),
        (MINE.replace("node = 40", "node = -1"), "`float` >= 0"),
        (MINE.replace("database = 300", ""), "missing required field `database`"),
        (MINE + "nodes = 3", "unknown field `nodes`"),
    ],
)
def test_invalid_prices_are_refused(refuse: Refuse, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    assert message in refuse("capacity", "--jobs-per-day", "1M", "--prices", "mine.toml")


@pytest.mark.parametrize("text", ["", "[]", '{"store": "postgres"}', '{"sqlite": {}, "postgres": {}}'])
def test_an_invalid_benchmark_file_is_refused_with_the_command_to_create_one(
    refuse: Refuse, tmp_path: Path, text: str
) -> None:
    (tmp_path / "now.json").write_text(text)
    line = refuse("capacity", "--jobs-per-day", "1M", "--measured", "now.json")
    assert "mainspring bench --store postgres --only full,disk --json" in line
