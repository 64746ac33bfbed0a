"""Which files are mutated, and where the tool keeps its data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "src/mainspring"
STORES = f"{PACKAGE}/stores"
PYTHON_FOLDERS = (
    "core/model",
    "core/rules",
    "core/worker",
    "core/scheduler",
    "core/cluster",
    "core/dispatch",
    "core/maintenance",
    "core/submit",
    "core/logs",
    "features",
)
#: Single files of rules in folders whose other files need a server or an HTTP request.
PYTHON_FILES = (
    *("integrations/kafka/address.py", "integrations/kafka/request_topic.py", "integrations/kafka/topics.py"),
    *("integrations/kafka/status_updates.py", "integrations/rabbitmq/address.py", "integrations/redis/address.py"),
    *("integrations/s3/address.py", "config/servers/broker_routes.py", "http/search.py"),
)
SQL_PATTERNS = ("postgres/queries/*.sql", "sqlite/*.sql", "sqlite/procedures/*.sql")
#: Text for people, and what only tests with whole processes execute, which are too slow to judge mutants.
LEFT_OUT = (
    *("core/model/schedules/cron/words.py", "core/model/runs/reserved.py", "core/model/schedules/presets.py"),
    *("core/worker/builtin/", "core/worker/executors/", "features/move/service.py", "features/backup/restored.py"),
)
#: The parts of a feature that the recorded tests do not call.
FEATURE_PARTS_LEFT_OUT = ("commands", "operations", "pages")

DATA = ROOT / ".mutants"
DOCUMENT = ROOT / "docs/contributing/mutants.md"

#: The tests that are recorded, one run of pytest for each part: those of ``make test`` that start no other process.
TESTS = {
    "rules": ("tests/unit", "tests/services", "tests/worker"),
    "contracts": ("tests/contracts",),
    "simulation": ("tests/simulation",),
    "stores": (
        "tests/adapters/test_postgres.py",
        "tests/adapters/test_postgres_policies.py",
        *sorted(f"tests/adapters/{file.name}" for file in (ROOT / "tests/adapters").glob("test_postgres_races_*.py")),
        "tests/adapters/test_sqlite.py",
        "tests/adapters/test_sqlite_policies.py",
    ),
}
#: The parts whose tests run the SQL of a store.
SQL_TESTS = ("contracts", "stores")


def list_files() -> Iterator[str]:
    """The paths of the files that are mutated, relative to the repository."""
    for folder in PYTHON_FOLDERS:
        for file in sorted((ROOT / PACKAGE / folder).rglob("*.py")):
            name = file.relative_to(ROOT / PACKAGE).as_posix()
            if not name.startswith(LEFT_OUT) and not _is_left_out(name):
                yield f"{PACKAGE}/{name}"
    for name in PYTHON_FILES:
        yield f"{PACKAGE}/{name}"
    for pattern in SQL_PATTERNS:
        for file in sorted((ROOT / STORES).glob(pattern)):
            yield file.relative_to(ROOT).as_posix()


def _is_left_out(name: str) -> bool:
    """Whether the file is a part of a feature for the command line, the API or the dashboard."""
    top, _, inside = name.partition("/")
    return top == "features" and any(
        inside.partition("/")[2].startswith((f"{part}.py", f"{part}/")) for part in FEATURE_PARTS_LEFT_OUT
    )
