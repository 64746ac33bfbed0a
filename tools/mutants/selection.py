"""Which tests judge a mutant, and in which order."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath

from tools.mutants.mutant import Mutant
from tools.mutants.record import Record, Test
from tools.mutants.server import Request

_LEAST = 120.0
_LEAST_EACH = 60.0
#: Words are compared by their first letters: ``stage`` names ``test_staging.py``.
_STEM = 4
#: The stem of a word in the names of files, and of words in the operators that their tests notice.
_FILES_BY_OPERATOR = {
    "conn": {"lock", "orde", "conf", "fenc"},
    "boun": {"comp", "cons", "arit", "extr", "limi", "bool", "not", "null"},
    "ways": {"cons", "arit"},
}
#: Stems that every path of SQL has.
_COMMON = {"adap", "proc", "quer", "sql", "py", "sqli", "post", "test"}


def find_tests(record: Record, mutant: Mutant) -> list[Test]:
    """The tests that use the place of a mutant."""
    if mutant.key:
        return record.find_by_statement(mutant.key)
    if mutant.name:
        return record.find_by_name(mutant.name) or record.find_by_file(mutant.file)
    # Not each line of a statement has an instruction of its own, and defaults are evaluated by the import.
    exact = record.find_by_lines(mutant.file, range(mutant.line, mutant.last_line + 1))
    return exact or record.find_by_lines(mutant.file, range(mutant.around[0], mutant.around[1] + 1))


def choose_tests(tests: Iterable[Test], cap: int, budget: float, about: str = "") -> list[Test]:
    """At most ``cap`` of them: a third come from as many files as possible, and a sixth are the narrowest.

    ``budget``: how many seconds they may take together, as recorded. Fast and narrow ones come first.
    ``about``: the id of the mutant. Up to half of the tests come from files named after its function, statement or
    operator, because thousands of tests use statements like ``submit``. They are of as many kinds as possible.
    """
    chosen: dict[str, Test] = {}
    spent = 0.0
    narrow = sorted(tests, key=lambda test: (test.breadth, test.seconds, test.id))
    place, _, operator = about.rpartition(":")
    words = _list_words(place)
    words |= {word for word, operators in _FILES_BY_OPERATOR.items() if operators & _list_words(operator)}
    named = [test for test in narrow if words & _list_words(PurePath(test.file).stem)]
    by_kind, by_file = _take_turns(named, _get_kind), _take_turns(narrow, lambda test: test.file)
    for limit, candidates in ((cap // 2, by_kind), (2 * cap // 3, narrow), (cap, by_file)):
        for test in candidates:
            fits = not chosen or spent + test.seconds <= budget
            if len(chosen) < limit and fits and test.id not in chosen:
                chosen[test.id] = test
                spent += test.seconds
    return sorted(chosen.values(), key=_rate)


def _list_words(text: str) -> set[str]:
    """The stems of the words of a path or a name."""
    return {word.lower()[:_STEM] for word in re.findall(r"[A-Za-z]+", text)} - _COMMON


def _take_turns(tests: Iterable[Test], group: Callable[[Test], object]) -> Iterator[Test]:
    """The first test of each group, then the second of each, and so on."""
    groups: dict[object, list[Test]] = defaultdict(list)
    for test in tests:
        groups[group(test)].append(test)
    for turn in itertools.zip_longest(*groups.values()):
        yield from (test for test in turn if test is not None)


def _get_kind(test: Test) -> object:
    """The variants of a test that use the same statements are of one kind."""
    return test.id.partition("[")[0], test.statements


def build_request(tests: list[Test]) -> Request:
    """With time-outs that only a mutant that hangs reaches."""
    total = sum(test.seconds for test in tests)
    slowest = max(test.seconds for test in tests)
    return Request([test.id for test in tests], _LEAST + 5 * total, _LEAST_EACH + 5 * slowest)


def _rate(test: Test) -> tuple[float, str]:
    return test.breadth * (test.seconds + 0.05), test.id
