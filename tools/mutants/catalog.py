"""All mutants of the repository, and the sample that a run judges."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable

from tools.mutants import python_mutator, sql_mutator
from tools.mutants.mutant import Mutant
from tools.mutants.paths import PACKAGE, ROOT, list_files

#: Files whose rules decide whether work is lost, doubled or late: each turn takes more of their mutants.
CRITICAL = (
    *(
        "core/model/runs/run.py",
        "core/model/runs/retry.py",
        "core/model/runs/rank.py",
        "core/model/limits/limits.py",
        "core/rules/",
        "core/model/schedules/plan.py",
        "core/model/limits/queues.py",
    ),
    *(
        "core/model/schedules/catch_up.py",
        "core/model/cluster/shard.py",
        "core/model/cluster/clock_guard.py",
        "core/model/runs/waits.py",
        "core/model/schedules/schedule.py",
    ),
    *(
        "core/model/workflows/dependencies.py",
        "core/model/runs/unique.py",
        "core/model/workflows/fan_out.py",
        "core/model/schedules/slo.py",
        "core/model/base/staleness.py",
    ),
    *(
        "core/worker/heartbeat.py",
        "core/worker/completer.py",
        "core/worker/slots.py",
        "core/worker/worker.py",
        "core/worker/lease.py",
        "core/worker/waiting.py",
        "core/worker/claimer.py",
    ),
    *(
        "core/cluster/shards.py",
        "core/maintenance/reaper.py",
        "core/dispatch/dead_hints.py",
        "core/cluster/epoch_check.py",
        "core/scheduler/",
    ),
    *("postgres/queries/claim.sql", "postgres/queries/complete.sql", "postgres/queries/reap.sql"),
    *("postgres/queries/fire.sql", "postgres/queries/coordinate.sql", "postgres/queries/limit.sql"),
    *("postgres/queries/submit.sql", "postgres/queries/stage.sql", "postgres/queries/dependencies.sql"),
    *("procedures/30_workers.sql", "procedures/50_reap.sql", "procedures/40_schedule.sql", "procedures/60_shards.sql"),
    *("limits.sql", "procedures/10_moves.sql", "procedures/20_submit.sql", "core/model/schedules/cron/"),
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
    name = file.removeprefix(f"{PACKAGE}/").removeprefix("stores/").removeprefix("sqlite/")
    return name.startswith(CRITICAL)
