"""Pages that repeat data from elsewhere: versions, the comparison, costs, and benchmark commands."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from bench.suite import API, ENGINE
from mainspring.stores.postgres.upkeep.findings import _OLDEST_SERVER

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMPARISON = (DOCS / "design" / "comparison.md").read_text()
BENCHMARK = (DOCS / "design" / "benchmark.md").read_text()
REPRODUCE = (DOCS / "design" / "reproduce.md").read_text()
VERSIONS = (DOCS / "reference" / "versions.md").read_text()


def row(page: str, *begin: str) -> list[str]:
    """The cells of the table row that starts with ``begin``."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    [found] = [cells for cells in rows if tuple(cells[: len(begin)]) == begin]
    return found


@pytest.mark.parametrize(("store", "column"), [("PostgreSQL", 3), ("SQLite", 4)])
def test_the_comparison_repeats_the_numbers_of_the_benchmark(store: str, column: int) -> None:
    shown = row(COMPARISON, "Mainspring", store)
    herd = row(BENCHMARK, "5,000 due at one instant, p50 / p99 / max ms late")[column]
    assert shown[2:] == [
        row(BENCHMARK, "submit one by one, jobs/s")[column],
        row(BENCHMARK, "drain of 200,000, jobs/s")[column],
        row(BENCHMARK, "idle latency p50 / p99, ms")[column],
        herd.rpartition(" / ")[0],
    ]


def test_the_shipped_costs_are_the_published_ones() -> None:
    costs = tomllib.loads((ROOT / "src/mainspring/features/capacity/figures/costs.toml").read_text())
    begin = "processor time of submitter / scheduler / worker / server, µs"
    _, scheduler, worker, server = row(BENCHMARK, begin)[1].split(" / ")
    assert [costs[name] for name in ("scheduler_us", "worker_us", "server_us")] == [
        float(number) for number in (scheduler, worker, server)
    ]
    of_the_api = row(BENCHMARK, "of the API / the server, for `POST /v1/jobs` one by one, µs")[1]
    assert of_the_api == f"up to {costs['api_us']} / up to {costs['server_api_us']}"
    kept = row(BENCHMARK, f"kept when it has ended, with {costs['kept_payload']} B of payload: tables / indexes, bytes")
    assert kept[1] == f"{costs['kept_table_bytes']} / {costs['kept_index_bytes']}"
    assert row(BENCHMARK, "written ahead of it, which a standby is sent, bytes")[1] == f"{costs['log_bytes']:,}"
    waiting = row(BENCHMARK, f"a scheduled one with {costs['waiting_payload']} B of payload, bytes")[1]
    assert waiting == str(costs["waiting_bytes"])
    memory = [costs[f"{kind}_mb"] for kind in ("api", "scheduler", "worker")]
    assert row(BENCHMARK, "memory of an API / a scheduler / a worker, MB")[1] == " / ".join(map(str, memory))
    assert row(BENCHMARK, "full cycle over 60 s, jobs/s")[3] == f"{costs['seen_per_second']:,}"


def test_every_command_that_reproduces_a_table_exists() -> None:
    commands = [command for command in re.findall(r"^\|[^|]*\| `([^`]+)`", REPRODUCE, re.MULTILINE) if command]
    assert len(commands) > 10
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    measurements = {item.name for item in (*ENGINE, *API)}
    for command in commands:
        words = command.removeprefix("REGIONS=regions.txt ").split()
        if words[0] == "make":
            assert words[1] in targets, command
        elif words[:2] == ["python", "-m"]:
            assert find_spec(words[2]) is not None, command
        else:
            assert words[:2] == ["mainspring", "bench"], command
            if "--only" in words:
                assert set(words[words.index("--only") + 1].split(",")) <= measurements, command


def test_every_benchmark_named_on_a_page_is_listed_for_reproduction() -> None:
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *DOCS.rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"python -m (bench\.experiments\.\w+)", page.read_text())}
    programs = {f"bench.experiments.{file.stem}" for file in (ROOT / "bench" / "experiments").glob("[!_]*.py")}
    assert named == programs
    rows = "\n".join(line for line in REPRODUCE.splitlines() if line.startswith("|"))
    assert {name for name in named if f"`python -m {name}" not in rows} == set()


def test_the_listed_versions_match_the_code_and_the_services() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"{project['requires-python'].removeprefix('>=')} or newer" in row(VERSIONS, "Python")[2]
    assert f"{_OLDEST_SERVER // 10_000} or newer" in row(VERSIONS, "PostgreSQL")[2]
    kafka_pom = (ROOT / "tools" / "services" / "kafka.xml").read_text()
    kafka = re.search(r"<artifactId>kafka_[^<]*</artifactId>\s*<version>(\d+\.\d+)", kafka_pom)
    assert kafka is not None
    assert row(VERSIONS, "Kafka")[1].startswith(f"{kafka[1]}, ")


def test_the_page_names_the_untested_versions_of_compose() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    images = [service["image"] for service in services.values() if "image" in service]
    for name, begin in (
        ("redis", "Redis"),
        ("rabbitmq", "RabbitMQ"),
        ("zookeeper", "ZooKeeper"),
        ("postgres", "PostgreSQL"),
    ):
        [version] = {found[1] for image in images if (found := re.fullmatch(rf"{name}:(\d+(?:\.\d+)?)\..*", image))}
        shown = version.partition(".")[0] if name == "postgres" else version
        assert re.search(
            rf"\b{re.escape(shown)} \((`deploy/compose.yaml` has|in `deploy/compose.yaml`)", row(VERSIONS, begin)[3]
        )
