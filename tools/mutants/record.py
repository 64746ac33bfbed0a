"""Step 1: run the fast tests once and keep which lines and statements each of them uses.

The record is made again when a file in ``src`` or a helper of the tests has changed since. Where only tests have
changed, only their files are recorded again. Mutants of SQL alone need no lines, and recording without them takes a
fraction of the time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData

from tools.mutants.paths import DATA, ROOT, SQL_TESTS, TESTS

_FOLDER = DATA / "record"
_COVERAGE = DATA / "coverage"
_TESTS = DATA / "tests.json"
#: pytest's exit code if all tests of the changed files are slow ones.
_NO_TESTS = 5


@dataclass(frozen=True)
class Test:
    """``breadth``: how many lines and statements it uses; a narrow test says more about each of them."""

    id: str
    seconds: float
    breadth: int
    statements: frozenset[str]

    @property
    def file(self) -> str:
        return self.id.partition("::")[0]


class Record:
    """Which passing tests use a line or a statement."""

    def __init__(self, tests: dict[str, Test], data: CoverageData, hash_: str) -> None:
        self.hash = hash_
        self._tests = tests
        self._data = data
        self._lines: dict[str, dict[int, set[str]]] = {}
        self._statements: dict[str, set[str]] = defaultdict(set)
        for test in tests.values():
            for key in test.statements:
                self._statements[key].add(test.id)

    def find_by_statement(self, key: str) -> list[Test]:
        return self._get_tests(self._statements[key])

    def find_by_lines(self, file: str, lines: Iterable[int]) -> list[Test]:
        contexts = self._load_lines(file)
        return self._get_tests({test for line in lines for test in contexts.get(line, ())})

    def find_by_file(self, file: str) -> list[Test]:
        return self.find_by_lines(file, self._load_lines(file))

    def find_by_name(self, name: str) -> list[Test]:
        """The tests that execute a line with this name: an import executes the definition of a constant."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        found: set[str] = set()
        for path in self._data.measured_files():
            text = Path(path).read_text()
            if name in text:
                lines = {n for n, line in enumerate(text.splitlines(), 1) if word.search(line)}
                found |= {test.id for test in self.find_by_lines(Path(path).relative_to(ROOT).as_posix(), lines)}
        return self._get_tests(found)

    def _load_lines(self, file: str) -> dict[int, set[str]]:
        if file not in self._lines:
            contexts = self._data.contexts_by_lineno(str(ROOT / file))
            self._lines[file] = {line: set(tests) for line, tests in contexts.items()}
        return self._lines[file]

    def _get_tests(self, ids: Iterable[str]) -> list[Test]:
        return [self._tests[test] for test in ids if test in self._tests]


def load(*, keep: bool, jobs: int, with_lines: bool) -> Record:
    """Read the record. Make it first if there is none, if it lacks the lines, or if it is outdated and not to keep."""
    current = hash_sources()
    known = json.loads(_TESTS.read_text()) if _TESTS.exists() else None
    if known is None or (with_lines and not _COVERAGE.exists()) or (known["hash"] != current and not keep):
        make(current, jobs, with_lines=with_lines)
        known = json.loads(_TESTS.read_text())
    data = CoverageData(str(_COVERAGE))
    data.read()
    tests = {
        test: Test(test, value["seconds"], value["breadth"], frozenset(value["statements"]))
        for test, value in known["tests"].items()
        if value["passed"]
    }
    return Record(tests, data, known["hash"])


def make(hash_: str, jobs: int, *, with_lines: bool) -> None:
    """Record each part of the tests, except the files of tests that are recorded with the same code."""
    code = _hash_files(file for file in _list_sources() if not _is_test(file))
    folder = _FOLDER / (code if with_lines else f"{code}-statements")
    for old in _FOLDER.glob("*"):
        if old != folder:
            shutil.rmtree(old)
    folder.mkdir(parents=True, exist_ok=True)
    there: set[str] = set()
    for part in TESTS if with_lines else SQL_TESTS:
        files = {file.relative_to(ROOT).as_posix(): _hash_files([file]) for file in _list_tests(TESTS[part])}
        there |= files.keys()
        changed = dict(sorted(files.items() - _read_recorded(folder).items()))
        if changed:
            used = "lines and statements" if with_lines else "statements"
            print(f"recording which {used} the tests use: {part}, {len(changed)} files", flush=True)
            _record(folder, part, changed, jobs, with_lines=with_lines)
    _combine(folder, hash_, there)


def _read_recorded(folder: Path) -> dict[str, str]:
    """The recorded files of tests, with their hashes."""
    recorded: dict[str, str] = {}
    for done in _list_recordings(folder):
        recorded |= json.loads(done.read_text())
    return recorded


def _list_recordings(folder: Path) -> list[Path]:
    """One file for each completed recording, oldest first, with the tests that it recorded and their hashes."""
    return sorted(folder.glob("*.done"), key=lambda done: (done.stat().st_mtime_ns, done.name))


def _record(folder: Path, part: str, files: dict[str, str], jobs: int, *, with_lines: bool) -> None:
    name = f"{part}-{hashlib.sha256(json.dumps(files).encode()).hexdigest()[:8]}"
    # The rest of an interrupted recording.
    for old in folder.glob(f"*.{name}.*"):
        old.unlink()
    options = [f"--numprocesses={jobs}", "--dist=worksteal", "-q", "-m", "not slow", "-p", "tools.mutants.recorder"]
    # Tracing makes some tests ten times slower.
    options.append("--timeout=1800")
    environment = build_environment(ROOT / "src") | {"MUTANTS_RECORD": str(folder), "MUTANTS_PART": name}
    environment["MUTANTS_LINES"] = "1" if with_lines else ""
    done = subprocess.run([sys.executable, "-m", "pytest", *options, *files], cwd=ROOT, env=environment, check=False)
    if done.returncode not in (0, 1, _NO_TESTS):
        sys.exit(f"recording failed: pytest ended with {done.returncode}")
    if done.returncode == 1:
        print("some tests failed: they are not used to judge mutants", flush=True)
    (folder / f"{name}.done").write_text(json.dumps(files))


def _combine(folder: Path, hash_: str, there: Collection[str]) -> None:
    """Combine all recordings. A later one replaces the tests of its files; lines that they no longer use do no harm."""
    tests: dict[str, dict[str, object]] = {}
    _COVERAGE.unlink(missing_ok=True)
    combined = CoverageData(str(_COVERAGE))
    for done in _list_recordings(folder):
        files = json.loads(done.read_text())
        tests = {name: test for name, test in tests.items() if name.partition("::")[0] not in files}
        for part in folder.glob(f"tests.{done.stem}.*.jsonl"):
            tests.update({value["id"]: value for value in map(json.loads, part.read_text().splitlines())})
        for part in folder.glob(f"coverage.{done.stem}.*"):
            data = CoverageData(str(part))
            data.read()
            combined.update(data)
    combined.write()
    tests = {name: test for name, test in tests.items() if name.partition("::")[0] in there}
    breadths: dict[str, int] = defaultdict(int)
    for file in combined.measured_files():
        for contexts in combined.contexts_by_lineno(file).values():
            for context in contexts:
                breadths[context] += 1
    for name, test in tests.items():
        statements = test["statements"]
        assert isinstance(statements, list)
        test["breadth"] = breadths[name] + len(statements)
    _TESTS.write_text(json.dumps({"hash": hash_, "tests": tests}))


def build_environment(source: Path) -> dict[str, str]:
    """The variables of a process that runs tests on the package in ``source``."""
    path = os.pathsep.join((str(source), str(ROOT)))
    return os.environ | {"PYTHONPATH": path}


def hash_sources() -> str:
    """The hash of all code and tests."""
    return _hash_files(_list_sources())


def _list_sources() -> list[Path]:
    files = [file for folder in ("src", "tests") for file in (ROOT / folder).rglob("*")]
    return sorted(file for file in files if file.suffix in (".py", ".sql") and file.is_file())


def _list_tests(paths: Iterable[str]) -> list[Path]:
    """The files of tests in these folders or at these paths."""
    wanted = [ROOT / path for path in paths]
    return [file for file in _list_sources() if _is_test(file) and any(file.is_relative_to(path) for path in wanted)]


def _is_test(file: Path) -> bool:
    """Whether no other file imports it."""
    return file.name.startswith("test_") and file.is_relative_to(ROOT / "tests")


def _hash_files(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
