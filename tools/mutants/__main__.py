"""``python -m tools.mutants``: record which tests use what, judge mutants, report the survivors."""

from __future__ import annotations

import argparse
import fcntl
import functools
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO

from tools.mutants import catalog, in_memory, record
from tools.mutants.mutant import Mutant
from tools.mutants.paths import DATA, DOCUMENT, ROOT
from tools.mutants.progress import Progress
from tools.mutants.results import (
    EQUIVALENT,
    SURVIVED,
    Result,
    Results,
    find_outdated,
    hash_mutated,
    read_explained,
    summarize,
)
from tools.mutants.same_program import compiles_to_the_same
from tools.mutants.selection import build_request, choose_tests, find_tests
from tools.mutants.server import RunResult
from tools.mutants.slot import Slot

#: So many tests kill most mutants, and import few files.
_FIRST = 10


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    every = catalog.list_mutants(options.files)
    mutants = every
    if not options.all:
        mutants = catalog.choose(every, options.count, options.seed, critical=options.critical)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.id}  {mutant.file}:{mutant.line}  {mutant.describe(_read(mutant.file))}")
        return 0
    lock = _lock()
    with_lines = not all(mutant.key for mutant in mutants)
    known = record.load(keep=options.keep_record, jobs=options.jobs, with_lines=with_lines)
    results = judge_all(mutants, known, Results(DATA / "results.json"), options)
    explained = read_explained(DOCUMENT.read_text() if DOCUMENT.exists() else "")
    lines, survivors = summarize(results, explained)
    lock.close()
    print("\n".join(lines))
    for survivor in sorted(survivors, key=lambda one: one.id):
        print(f"{survivor.outcome}: {survivor.place}: {survivor.change}\n    `{survivor.id}`")
    for outdated in find_outdated(explained, [mutant.id for mutant in every]):
        print(f"an explanation of a mutant that does not exist any more:\n    `{outdated}`")
    return 1 if survivors or any(result.outcome == "error" for result in results) else 0


def judge_all(mutants: list[Mutant], known: record.Record, kept: Results, options: argparse.Namespace) -> list[Result]:
    """Judge the mutants that ``kept`` has no valid result of, in ``options.jobs`` threads with a process each."""
    progress = Progress(len(mutants))
    found: list[Result] = []
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    lock = threading.Lock()
    together: list[Mutant] = []
    for mutant in mutants:
        result = kept.get_valid(mutant, _read(mutant.file), known.hash)
        if result is not None and not (options.again and result.outcome in SURVIVED):
            found.append(result)
            progress.add(result.outcome, known=True)
        elif in_memory.can_judge(mutant):
            together.append(mutant)
        else:
            waiting.put(mutant)

    def keep(result: Result) -> None:
        kept.add(result)
        found.append(result)
        if result.outcome in SURVIVED:
            progress.note(f"{result.outcome}: {result.place}: {result.change}  {result.id}")
        progress.add(result.outcome)

    if together:
        judge_together(together, known, keep, options)

    def work(number: int) -> None:
        with Slot(number) as slot:
            while True:
                try:
                    mutant = waiting.get_nowait()
                except queue.Empty:
                    return
                with lock:
                    tests = find_tests(known, mutant)
                result = judge(mutant, tests, known.hash, slot, options)
                with lock:
                    keep(result)

    _run_threads(work, min(options.jobs, max(waiting.qsize(), 1)))
    return found


def judge_together(
    mutants: list[Mutant], known: record.Record, keep: Callable[[Result], None], options: argparse.Namespace
) -> None:
    """Judge mutants of SQL in one process."""
    by_id = {mutant.id: mutant for mutant in mutants}
    plans = []
    for mutant in mutants:
        chosen = [test.id for tests in _choose_rounds(find_tests(known, mutant), mutant, options) for test in tests]
        if compiles_to_the_same(mutant, _read(mutant.file)):
            keep(_build_result(mutant, known.hash, 0, RunResult(EQUIVALENT)))
        elif chosen:
            plans.append(in_memory.Plan(mutant.id, mutant.file, mutant.apply(_read(mutant.file)), chosen))
        else:
            keep(_build_result(mutant, known.hash, 0, RunResult("not covered")))

    def tell(answer: in_memory.Answer) -> None:
        result = RunResult(answer.outcome, answer.test, answer.error, answer.seconds)
        keep(_build_result(by_id[answer.id], known.hash, answer.tests, result))

    in_memory.judge(plans, tell)


def judge(mutant: Mutant, tests: list[record.Test], hash_: str, slot: Slot, options: argparse.Namespace) -> Result:
    """A mutant that the chosen tests let pass is judged by more of them: a survivor costs a reader's attention."""
    text = _read(mutant.file)
    result = RunResult(EQUIVALENT if compiles_to_the_same(mutant, text) else "not covered")
    used = 0
    for chosen in _choose_rounds(tests, mutant, options):
        if result.outcome not in SURVIVED:
            break
        result = _judge_once(mutant, text, chosen, slot)
        used += len(chosen)
    return _build_result(mutant, hash_, used, result)


def _choose_rounds(
    tests: list[record.Test], mutant: Mutant, options: argparse.Namespace
) -> Iterator[list[record.Test]]:
    first = [test for test in tests if any(text in test.id for text in options.first)]
    if first:
        yield first
        tests = [test for test in tests if test not in first]
    rounds = (_FIRST, options.budget), (options.cap - _FIRST, options.budget), (options.confirm, 3 * options.budget)
    for cap, budget in rounds:
        chosen = choose_tests(tests, cap, budget, mutant.id)
        if chosen:
            yield chosen
        tests = [test for test in tests if test not in chosen]


def _build_result(mutant: Mutant, hash_: str, used: int, result: RunResult) -> Result:
    text = _read(mutant.file)
    return Result(
        id=mutant.id,
        outcome=result.outcome,
        place=f"{mutant.file}:{mutant.line}",
        change=mutant.describe(text),
        text=hash_mutated(mutant, text),
        record=hash_,
        tests=used,
        test=result.test,
        error=result.error,
        seconds=round(result.seconds, 2),
    )


def _judge_once(mutant: Mutant, text: str, tests: list[record.Test], slot: Slot) -> RunResult:
    request = build_request(tests)
    result = slot.judge(mutant, text, request)
    if result.outcome != "survived" and _may_be_load(result.error):
        result = slot.judge(mutant, text, request)
    return result


def _may_be_load(error: str) -> bool:
    """Whether a busy machine alone can cause the error: such a mutant is judged a second time."""
    return any(word in error for word in ("Timeout", "timed out", "StoreUnavailable", "Connection", "no result"))


def _run_threads(work: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _lock() -> IO[str]:
    """Two runs at once would change each other's copies."""
    DATA.mkdir(exist_ok=True)
    file = (DATA / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("another run is at work in .mutants; wait until it has ended")
    return file


@functools.cache
def _read(file: str) -> str:
    return (ROOT / file).read_text()


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description="Judge mutants of the code by its tests.")
    parser.add_argument("--count", type=int, default=400, help="how many mutants to judge (default: 400)")
    parser.add_argument("--seed", type=int, default=1, help="which sample: the same seed chooses the same mutants")
    parser.add_argument("--files", nargs="+", default=[], metavar="TEXT", help="only files whose path contains it")
    parser.add_argument("--all", action="store_true", help="judge every mutant instead of a sample")
    parser.add_argument("--critical", action="store_true", help="sample only the files that decide about lost work")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once (default: processors)")
    parser.add_argument("--cap", type=int, default=60, help="at most so many tests for each mutant (default: 60)")
    parser.add_argument("--confirm", type=int, default=240, help="so many more for a mutant that survived them")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests for each mutant, as recorded")
    parser.add_argument("--first", nargs="+", default=[], metavar="TEXT", help="tests whose id contains it come first")
    parser.add_argument("--again", action="store_true", help="judge survivors again, for instance with a larger cap")
    parser.add_argument("--keep-record", action="store_true", help="use the record although sources have changed")
    parser.add_argument("--list", action="store_true", help="print the chosen mutants and judge none")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
