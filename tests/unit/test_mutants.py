"""The mutation tester: operators, stable ids, the sample, the choice of tests, and explained survivors."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from coverage import CoverageData

from mainspring.core.model.base.instant import DAY
from mainspring.stores.postgres.database import load_statements
from tools.mutants import catalog, in_memory, paths, python_mutator, record, sql_mutator
from tools.mutants.mutant import Mutant
from tools.mutants.record import Test as RecordedTest
from tools.mutants.results import Result, find_outdated, read_explained, summarize
from tools.mutants.same_program import compiles_to_the_same
from tools.mutants.selection import choose_tests
from tools.mutants.server import _interpret as interpret
from tools.mutants.sql_text import hash_statement, list_units, tokenize

FILE = "src/mainspring/core/model/example.py"


def mutate_function(body: str) -> set[str]:
    """The bodies of all mutants of a function with this body."""
    head = "def rule(a, b, c):\n    "
    mutants = python_mutator.list_mutants(FILE, f"{head}{body}\n")
    return {mutant.apply(f"{head}{body}\n").removeprefix(head).rstrip("\n") for mutant in mutants}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a < b", {"return a <= b"}),
        ("return a >= b", {"return a > b"}),
        ("return a == b", {"return a != b"}),
        ("return a < b <= c", {"return a <= b <= c", "return a < b < c"}),
        ("return a is not b", {"return a is b"}),
        ("return a not in b", {"return a in b"}),
        ("return a and b and c", {"return a or b and c", "return a and b or c"}),
        ("return not (a or b)", {"return (a or b)", "return not (a and b)"}),
        ("return a + b - c", {"return a - b - c", "return a + b + c"}),
        ("a -= b", {"a += b"}),
        ("return min(a, b)", {"return max(a, b)"}),
        ("return True", {"return False"}),
        ("return a[1]", {"return a[2]", "return a[0]"}),
        ("return a[0]", {"return a[1]"}),
        ("return (a) < (b)  # a < b", {"return (a) <= (b)  # a < b"}),
        ("return 'ä' if a > b else c", {"return 'ä' if a >= b else c"}),
    ],
)
def test_changes_one_place_of_a_function(body: str, expected: set[str]) -> None:
    assert mutate_function(body) == expected


@pytest.mark.parametrize(
    "body",
    ["return a + 'text'", "assert a < b", "return f'{a + b}'", "return a.min(b)", "return 10_000", "'''a < b'''"],
)
def test_leaves_texts_assertions_and_tuned_sizes_alone(body: str) -> None:
    assert mutate_function(body) == set()


def mutate_statement(statement: str) -> dict[str, list[str]]:
    """The mutated texts of a statement, by operator."""
    found: dict[str, list[str]] = {}
    for edit in sql_mutator.list_edits(statement):
        text = statement[: edit.start] + edit.new + statement[edit.end :]
        found.setdefault(edit.operator, []).append(" ".join(text.split()))
    return found


def test_does_not_touch_comments_strings_and_parameters_of_sql() -> None:
    assert mutate_statement("SELECT 'a < 1', $1, :limit -- b < 2 AND c\n/* d = 3 */ FROM \"e < 4\"") == {}


def test_removes_locks_orders_and_limits() -> None:
    statement = "SELECT id FROM run ORDER BY rank, id LIMIT $1 FOR UPDATE SKIP LOCKED"
    assert mutate_statement(statement) == {
        "drop-order": ["SELECT id FROM run LIMIT $1 FOR UPDATE SKIP LOCKED"],
        "drop-limit": ["SELECT id FROM run ORDER BY rank, id FOR UPDATE SKIP LOCKED"],
        "drop-lock": ["SELECT id FROM run ORDER BY rank, id LIMIT $1"],
        "drop-skip-locked": ["SELECT id FROM run ORDER BY rank, id LIMIT $1 FOR UPDATE"],
    }


def test_keeps_an_order_that_selects_nothing() -> None:
    assert mutate_statement("SELECT id FROM run ORDER BY id") == {}


def test_distinguishes_assignments_from_comparisons() -> None:
    found = mutate_statement("UPDATE run SET a = $1, b = (c = d) WHERE id = $2")
    assert found["compare"] == [
        "UPDATE run SET a = $1, b = (c <> d) WHERE id = $2",
        "UPDATE run SET a = $1, b = (c = d) WHERE id <> $2",
    ]


def test_drops_each_condition_of_a_conjunction() -> None:
    found = mutate_statement("DELETE FROM run WHERE id = $1 AND fence = $2 AND (a OR b)")
    assert found["drop-condition"] == [
        "DELETE FROM run WHERE (id = $1 OR true) AND fence = $2 AND (a OR b)",
        "DELETE FROM run WHERE id = $1 AND fence = $2 AND ((a OR b) OR true)",
    ]
    assert found["drop-fence"] == ["DELETE FROM run WHERE id = $1 AND (fence = $2 OR true) AND (a OR b)"]


def test_the_and_of_between_is_no_conjunction() -> None:
    found = mutate_statement("SELECT a FROM run WHERE a BETWEEN $1 AND $2 AND b")
    assert found["boolean"] == ["SELECT a FROM run WHERE a BETWEEN $1 AND $2 OR b"]
    assert found["drop-condition"][0] == "SELECT a FROM run WHERE (a BETWEEN $1 AND $2 OR true) AND b"


def test_removes_what_resolves_a_conflict() -> None:
    assert mutate_statement("INSERT INTO a VALUES ($1) ON CONFLICT DO NOTHING RETURNING b")["drop-conflict"] == [
        "INSERT INTO a VALUES ($1) RETURNING b"
    ]
    assert mutate_statement("INSERT OR IGNORE INTO a VALUES (?)") == {"drop-conflict": ["INSERT INTO a VALUES (?)"]}


def test_swaps_extremes_and_negations_of_sql() -> None:
    found = mutate_statement("SELECT greatest(a, b), min(c) FROM d WHERE e IS NOT NULL AND NOT f")
    assert [text[7:31] for text in found["extreme"]] == ["least(a, b), min(c) FROM", "greatest(a, b), max(c) F"]
    assert found["null"][0].endswith("e IS NULL AND NOT f")
    assert found["not"][0].endswith("e IS NOT NULL AND f")


def test_parentheses_have_the_depth_of_their_outside() -> None:
    assert [(token.text, token.depth) for token in tokenize("a (b)")] == [("a", 0), ("(", 0), ("b", 1), (")", 0)]


def test_finds_named_statements_and_statements_of_triggers() -> None:
    named = "-- A file.\n-- name: one\nSELECT 1;\n-- name: two\nSELECT 2;\n"
    assert [unit.key for unit in list_units("sqlite/queries.sql", named)] == [
        "sqlite/queries.sql::one",
        "sqlite/queries.sql::two",
    ]
    body = "    DELETE\n    FROM a;\n    -- b;\n    DELETE FROM c WHERE at < :DAY;\n"
    trigger = f"CREATE TEMP TRIGGER go INSTEAD OF INSERT ON call BEGIN\n{body}END;\n"
    units = list(list_units("sqlite/procedures/10_go.sql", trigger))
    assert [unit.name for unit in units] == ["go", "go"]
    assert units[0].key == hash_statement("DELETE FROM a")
    assert trigger[units[1].start :].startswith("DELETE FROM c")
    # SQLite reports literals for constants.
    assert units[1].key == hash_statement(f"DELETE FROM c WHERE at < {DAY}")


def list_ids(text: str) -> list[str]:
    return [mutant.id for mutant in python_mutator.list_mutants(FILE, text)]


def test_ids_survive_moved_lines_comments_and_docstrings() -> None:
    first = list_ids("def rule(a, b):\n    return a < b or a > b\n")
    moved = 'LIMIT = 1\n\n\ndef rule(a, b):\n    """A rule."""\n    # Why.\n    return a < b or a > b\n'
    assert first == list_ids(moved)
    assert len(set(first)) == 3


def test_ids_change_with_the_function() -> None:
    assert set(list_ids("def rule(a, b):\n    return a < b\n")).isdisjoint(
        list_ids("def rule(a, b):\n    return a < b + a\n")
    )


def test_ids_of_sql_survive_moved_lines_and_comments() -> None:
    file = "src/mainspring/stores/postgres/queries/example.sql"
    before = "-- name: one\nSELECT a FROM b WHERE a < $1\n"
    after = "-- A file.\n\n-- name: one\n-- Why.\nSELECT a\nFROM b WHERE a < $1\n"
    ids = [[mutant.id for mutant in sql_mutator.list_mutants(file, text)] for text in (before, after)]
    assert ids[0] == ids[1]
    assert ids[0][0].startswith("postgres/queries/example.sql:one:")


def make_mutant(file: str, operator: str, number: int) -> Mutant:
    return Mutant(f"{file}:{operator}.{number}@000000", file, operator, 0, 1, "", 1, 1)


def test_a_sample_is_the_same_for_the_same_seed_and_spreads_over_files_and_operators() -> None:
    mutants = [
        make_mutant(file, operator, number)
        for file in ("a.py", "b.py", "c.py")
        for operator, count in (("compare", 20), ("not", 2))
        for number in range(count)
    ]
    chosen = catalog.choose(mutants, 6, seed=1)
    assert chosen == catalog.choose(reversed(mutants), 6, seed=1)
    assert {mutant.file for mutant in chosen} == {"a.py", "b.py", "c.py"}
    assert sorted(mutant.operator for mutant in chosen) == ["compare"] * 3 + ["not"] * 3
    assert len(catalog.choose(mutants, 1_000, seed=1)) == len(mutants)


def test_chooses_the_narrowest_tests_and_tests_of_many_files() -> None:
    tests = [RecordedTest(f"a.py::test_{number}", 0.1, 10 + number, frozenset()) for number in range(10)]
    tests += [RecordedTest(f"b.py::test_{number}", 0.1, 100 + number, frozenset()) for number in range(2)]
    tests += [RecordedTest("c.py::test_wide", 0.1, 1_000, frozenset())]
    chosen = [test.id for test in choose_tests(tests, 4, budget=60)]
    assert chosen == ["a.py::test_0", "a.py::test_1", "b.py::test_0", "c.py::test_wide"]
    assert len(choose_tests(tests, 60, budget=0.55)) == 5


def test_chooses_tests_of_files_named_after_the_statement() -> None:
    tests = [RecordedTest(f"tests/test_claim.py::test_{number}", 0.1, number, frozenset()) for number in range(50)]
    tests += [RecordedTest("tests/test_submit.py::test_wide", 0.1, 1_000, frozenset())]
    tests += [RecordedTest("tests/test_sqlite.py::test_wide", 0.1, 1_000, frozenset())]
    about = "sqlite/procedures/20_submit.sql:submit_more:drop-conflict.1@4969c3"
    chosen = {test.id for test in choose_tests(tests, 3, budget=60, about=about)}
    assert chosen == {
        "tests/test_claim.py::test_0",
        "tests/test_sqlite.py::test_wide",
        "tests/test_submit.py::test_wide",
    }


@pytest.mark.parametrize(
    ("operator", "file"),
    [
        ("drop-skip-locked", "test_two_connections"),
        ("compare", "test_boundaries_due"),
        ("constant+1", "test_ways_into_a_queue"),
    ],
)
def test_chooses_tests_of_files_that_notice_an_operator(operator: str, file: str) -> None:
    tests = [RecordedTest(f"tests/test_claim.py::test_{number}", 0.1, number, frozenset()) for number in range(50)]
    tests += [RecordedTest(f"tests/{file}.py::test_wide", 0.1, 1_000, frozenset())]
    tests += [RecordedTest("tests/test_api.py::test_wide", 0.1, 500, frozenset())]
    chosen = {
        test.id for test in choose_tests(tests, 3, budget=60, about=f"postgres/queries/a.sql:b:{operator}.1@4969c3")
    }
    assert f"tests/{file}.py::test_wide" in chosen


@pytest.mark.parametrize(
    ("recorded", "needed", "is_made"), [(False, False, False), (False, True, True), (True, False, False)]
)
def test_a_record_without_lines_serves_mutants_of_sql_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recorded: bool, needed: bool, is_made: bool
) -> None:
    made: list[bool] = []
    for name, value in {"_TESTS": tmp_path / "tests", "_COVERAGE": tmp_path / "lines"}.items():
        monkeypatch.setattr(record, name, value)
    monkeypatch.setattr(record, "hash_sources", lambda: "now")
    monkeypatch.setattr(record, "make", lambda *_, with_lines: made.append(with_lines))
    (tmp_path / "tests").write_text('{"hash": "now", "tests": {}}')
    if recorded:
        data = CoverageData(str(tmp_path / "lines"))
        data.add_lines({"a.py": [1]})
    record.load(keep=False, jobs=1, with_lines=needed)
    assert made == [True] * is_made


@pytest.mark.parametrize(
    ("code", "known", "outcome"),
    [
        (0, {"passed": 3}, "survived"),
        (0, {"passed": 0}, "error"),
        (5, {}, "error"),
        (1, {"passed": 3, "test": "a", "error": "E assert 1 == 2"}, "killed"),
        (1, {"passed": 3, "test": "a", "error": "E Failed: Timeout (>60.0s) from pytest-timeout."}, "timed out"),
        (2, {"test": "a.py", "error": "E NameError"}, "killed"),
        (-11, {}, "killed"),
    ],
)
def test_interprets_how_pytest_ended(code: int, known: dict[str, object], outcome: str) -> None:
    assert interpret(code, known, 1.0).outcome == outcome


def test_an_order_that_an_index_serves_and_the_limit_of_a_scalar_subquery_change_no_program() -> None:
    file = "src/mainspring/stores/sqlite/procedures/40_schedule.sql"
    text = (paths.ROOT / file).read_text()
    mutants = [mutant for mutant in sql_mutator.list_mutants(file, text) if ":stage:" in mutant.id]

    def find(operator: str, removed: str) -> Mutant:
        return next(one for one in mutants if one.operator == operator and text[one.start : one.end] == removed)

    for operator, removed, is_same in (
        ("drop-order", "ORDER BY f.due, f.id", True),
        ("drop-limit", "LIMIT 1", True),
        ("drop-order", "ORDER BY 2, 3", False),
        ("drop-limit", "LIMIT NEW.argument + 1", False),
    ):
        assert compiles_to_the_same(find(operator, removed), text) == is_same


class FakeRuns:
    """Instead of pytest: each file of tests passes with one test, which uses one line."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: list[list[str]] = []

    def __call__(
        self, command: Sequence[str], *, env: dict[str, str], **options: object
    ) -> subprocess.CompletedProcess[str]:
        files = [argument for argument in command if argument.startswith("tests/")]
        self.files.append(files)
        folder, part = Path(env["MUTANTS_RECORD"]), env["MUTANTS_PART"]
        data = CoverageData(str(folder / f"coverage.{part}.gw0"))
        for file in files:
            data.set_context(f"{file}::test_it")
            data.add_lines({str(self.root / "src/code.py"): [len(self.files)]})
        data.write()
        lines = [{"id": f"{file}::test_it", "seconds": 0.1, "passed": True, "statements": []} for file in files]
        (folder / f"tests.{part}.gw0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return subprocess.CompletedProcess(command, 0)


def test_only_changed_tests_are_recorded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = FakeRuns(tmp_path)
    monkeypatch.setattr(record, "ROOT", tmp_path)
    for name, file in (("_FOLDER", "record"), ("_COVERAGE", "coverage"), ("_TESTS", "tests.json")):
        monkeypatch.setattr(record, name, tmp_path / ".mutants" / file)
    monkeypatch.setattr(record, "TESTS", {"rules": ("tests/unit",), "contracts": ("tests/contracts",)})
    monkeypatch.setattr(subprocess, "run", runs)

    def write(file: str, text: str) -> None:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)

    def find(line: int) -> list[str]:
        known = record.load(keep=False, jobs=1, with_lines=True)
        return sorted(test.file for test in known.find_by_lines("src/code.py", [line]))

    first, second, third = "tests/unit/test_first.py", "tests/unit/test_second.py", "tests/contracts/test_third.py"
    for file in (first, second, third, "src/code.py", "tests/support/help.py"):
        write(file, "before")
    assert find(1) == [first, second]
    assert runs.files == [[first, second], [third]]
    write(second, "after")
    assert find(3) == [second]
    assert find(2) == [third]
    assert runs.files[2:] == [[second]]
    (tmp_path / first).unlink()
    assert find(1) == [second]
    assert runs.files[3:] == []
    write("tests/support/help.py", "after")
    assert find(4) == [second]
    assert runs.files[3:] == [[second], [third]]


def test_replaces_a_file_of_statements_in_memory_for_a_while() -> None:
    file = "src/mainspring/stores/postgres/queries/coordinate.sql"
    plan = in_memory.Plan("id", file, "-- name: owned\nSELECT :RUNNING, :member\n", [])

    def read() -> str:
        return load_statements("mainspring", ("coordinate", "claim"))["owned"].text

    before = read()
    with in_memory.replaced(plan):
        assert read() == "SELECT 4, $1"
    assert read() == before


def make_result(identifier: str, outcome: str) -> Result:
    return Result(identifier, outcome, "src/a.py:7", "< → <=", "text", "record")


def test_a_survivor_is_explained_by_a_row_with_its_id() -> None:
    page = (
        "Run `make mutants`.\n\n| id | place | why |\n|---|---|---|\n| `a.py:f:not.1@0a1b2c` | `f` | It is equal. |\n"
    )
    assert read_explained(page) == {"a.py:f:not.1@0a1b2c"}
    results = [
        make_result("a.py:f:not.1@0a1b2c", "survived"),
        make_result("a.py:f:not.2@0a1b2c", "not covered"),
        make_result("a.py:f:not.3@0a1b2c", "timed out"),
        make_result("a.py:f:not.4@0a1b2c", "killed"),
    ]
    lines, open_ = summarize(results, read_explained(page))
    assert [one.id for one in open_] == ["a.py:f:not.2@0a1b2c"]
    assert lines[-1] == "4 judged, 50.0 % killed, 1 explained, 1 to look at"


def test_an_explanation_is_outdated_if_its_function_has_changed() -> None:
    explained = {"a.py:f:not.1@0a1b2c", "a.py:g:not.1@0a1b2c", "b.py:f:not.1@0a1b2c"}
    assert find_outdated(explained, ["a.py:f:not.1@0a1b2c", "a.py:g:not.1@ffffff"]) == ["a.py:g:not.1@0a1b2c"]


def test_every_folder_pattern_and_left_out_name_finds_files() -> None:
    files = list(paths.list_files())
    for folder in paths.PYTHON_FOLDERS:
        assert any(file.startswith(f"{paths.PACKAGE}/{folder}/") for file in files), folder
    for pattern in paths.SQL_PATTERNS:
        assert list((paths.ROOT / paths.STORES).glob(pattern)), pattern
    for name in (*paths.LEFT_OUT, *paths.PYTHON_FILES):
        assert (paths.ROOT / paths.PACKAGE / name).exists(), name
    for name in (name for part in paths.TESTS.values() for name in part):
        assert (paths.ROOT / name).exists(), name
    for name in catalog.CRITICAL:
        assert any(catalog.is_critical(file) for file in files if name in file), name


def test_the_services_of_features_are_mutated_and_their_pages_are_not() -> None:
    files = set(paths.list_files())
    assert f"{paths.PACKAGE}/features/slo/service.py" in files
    assert f"{paths.PACKAGE}/features/calendars/ical.py" in files
    assert not any(part in file for file in files for part in ("/pages", "/commands", "/operations"))


def test_every_explained_survivor_is_in_a_file_that_is_mutated() -> None:
    files = set(paths.list_files())
    named = {id_.partition(":")[0] for id_ in read_explained(paths.DOCUMENT.read_text())}
    assert len(named) > 10
    assert {name for name in named if not {f"{paths.PACKAGE}/{name}", f"{paths.STORES}/{name}"} & files} == set()
