"""All mutants of the repository, and the sample that a run judges."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable

from tools.mutants import python_mutator, sql_mutator
from tools.mutants.mutant import Mutant
from tools.mutants.places import PACKAGE, ROOT, list_files

#: Files whose rules decide whether work is lost, doubled or late: each turn takes more of their mutants.
CRITICAL = (
    *("domain/run.py", "domain/retry.py", "domain/rank.py", "domain/limits.py", "domain/plan.py", "domain/queues.py"),
    *("domain/catch_up.py", "domain/shard.py", "domain/clock_guard.py", "domain/waits.py", "domain/schedule.py"),
    *("domain/dependencies.py", "domain/unique.py", "domain/fan_out.py", "domain/slo.py", "domain/staleness.py"),
    *("worker/heartbeat.py", "worker/settler.py", "worker/slots.py", "worker/worker.py", "worker/claimer.py"),
    *("control/shards.py", "control/reaper.py", "control/undertaker.py", "control/sealing.py", "control/scheduler/"),
    *("postgres/queries/claim.sql", "postgres/queries/settle.sql", "postgres/queries/reap.sql"),
    *("postgres/queries/fire.sql", "postgres/queries/coordinate.sql", "postgres/queries/limit.sql"),
    *("postgres/queries/submit.sql", "postgres/queries/stage.sql", "postgres/queries/family.sql"),
    *("procedures/30_work.sql", "procedures/50_reap.sql", "procedures/40_schedule.sql", "procedures/60_coordinate.sql"),
    *("procedures/15_limits.sql", "procedures/10_moves.sql", "procedures/20_submit.sql", "domain/cron/"),
)
_TURNS = 4


def list_mutants(files: Iterable[str] = ()) -> list[Mutant]:
    """The mutants of all files whose path contains one of these texts."""
    wanted = tuple(files)
    found: list[Mutant] = []
    for file in list_files():
        if not wanted or any(text in file for text in wanted):
            text = (ROOT / file).read_text()
            mutator = sql_mutator if file.endswith(".sql") else python_mutator
            found += mutator.list_mutants(file, text)
    return found


def choose(mutants: Iterable[Mutant], count: int, seed: int, *, critical: bool = False) -> list[Mutant]:
    """``count`` of them, the same for the same seed: files take turns, and each offers its rarest operator so far."""
    generator = random.Random(seed)
    by_file: dict[str, dict[str, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for mutant in sorted(mutants, key=lambda one: one.id):
        if not critical or is_critical(mutant.file):
            by_file[mutant.file][mutant.operator].append(mutant)
    for operators in by_file.values():
        for group in operators.values():
            generator.shuffle(group)
    turns = [file for file in by_file for _ in range(_TURNS if is_critical(file) else 1)]
    used: Counter[str] = Counter()
    chosen: list[Mutant] = []
    while turns and len(chosen) < count:
        generator.shuffle(turns)
        for file in turns:
            operators = by_file[file]
            if operators and len(chosen) < count:
                operator = min(operators, key=lambda name: (used[name], name))
                used[operator] += 1
                chosen.append(operators[operator].pop())
                if not operators[operator]:
                    del operators[operator]
        turns = [file for file in turns if by_file[file]]
    return chosen


def is_critical(file: str) -> bool:
    name = file.removeprefix(f"{PACKAGE}/").removeprefix("adapters/store/").removeprefix("sqlite/")
    return name.startswith(CRITICAL)
