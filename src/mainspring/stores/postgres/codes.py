"""The numbers that stand for states and kinds in rows, and the names that SQL files use for them."""

from enum import IntEnum

from mainspring.core.model.base.instant import DAY, HOUR, MINUTE
from mainspring.core.model.limits.limits import BREAKER, PER_PERIOD
from mainspring.core.model.runs.rank import HEAD_START, IDLE, LATE_PENALTY
from mainspring.core.model.runs.run import Outcome, RunState
from mainspring.core.model.schedules.job import JobState
from mainspring.core.model.workflows.dependencies import DependencyRule

STATE_CODES: dict[RunState, int] = {
    RunState.SCHEDULED: 1,
    RunState.BLOCKED: 2,
    RunState.QUEUED: 3,
    RunState.RUNNING: 4,
    RunState.SUCCEEDED: 5,
    RunState.FAILED: 6,
    RunState.CANCELLED: 7,
    RunState.SKIPPED: 8,
}
#: State codes of blocked runs: blocked by a limit, and waiting for parents.
AT_LIMIT, BY_PARENTS = 9, 10
STATES = {code: state for state, code in STATE_CODES.items()} | dict.fromkeys((AT_LIMIT, BY_PARENTS), RunState.BLOCKED)
OUTCOME_CODES: dict[Outcome, int] = {
    Outcome.SUCCESS: 1,
    Outcome.ERROR: 2,
    Outcome.TIMEOUT: 3,
    Outcome.LOST: 4,
    Outcome.CANCELLED: 5,
    Outcome.RELEASED: 6,
}
OUTCOMES = {code: outcome for outcome, code in OUTCOME_CODES.items()}
JOB_STATE_CODES: dict[JobState, int] = {
    JobState.SCHEDULED: 1,
    JobState.PAUSED: 2,
    JobState.FINISHED: 3,
    JobState.CANCELLED: 4,
}
JOB_STATES = {code: state for state, code in JOB_STATE_CODES.items()}
RULE_CODES: dict[DependencyRule, int] = {
    DependencyRule.ALL_SUCCEEDED: 1,
    DependencyRule.ALL_DONE: 2,
    DependencyRule.ANY_SUCCEEDED: 3,
    DependencyRule.ANY_FAILED: 4,
}
RULES = {code: rule for rule, code in RULE_CODES.items()}

DECISION_CODES = {"run": 1, "skipped": 2}
DECISIONS = {code: decision for decision, code in DECISION_CODES.items()}

#: What a run was made by.
SUBMITTED, TICK, TICK_OF_DELAY, MANUAL, BACKFILL = 1, 2, 3, 4, 5

#: The bucket of bodies that outlive their day, and the bucket of the bodies of job versions.
KEPT_BUCKET, FOREVER_BUCKET = -1, 0
#: A bucket also contains the retention class of its runs: those of class n are offset by n times this number.
CLASS_WIDTH = 100_000
#: How many days a partition of each class spans: a class with a long retention has few, wide partitions.
UNITS = (1, 1, 7, 30)
#: How many days of partitions are made ahead.
DAYS_AHEAD = 8


class NameKind(IntEnum):
    """What a numbered name is the name of."""

    TENANT = 1
    TASK = 2
    QUEUE = 3
    #: The labels that a run requires: sorted, separated by commas.
    LABEL_SET = 4
    #: Runs of a tenant or a priority that have the same label set: tenant:label set:priority.
    CLAIM_GROUP = 5


SESSION_KINDS = {"worker": 1, "scheduler": 2}

#: Dead letters that wait for a decision, were replayed, or were discarded.
DEAD_LETTER_CODES = {"OPEN": 1, "REPLAYED": 2, "DISCARDED": 3}
#: History classes of the standard retention class; those of the other retention classes follow.
SUCCEEDED_CLASS, UNSUCCESSFUL_CLASS = 1, 2

#: What ``:RUNNING`` and its like stand for in the SQL files. The states in which a run has ended come last.
SQL_CONSTANTS: dict[str, int] = {
    **{state.name: code for state, code in STATE_CODES.items()},
    "BLOCKED_BY_LIMIT": AT_LIMIT,
    "BLOCKED_BY_PARENTS": BY_PARENTS,
    # Never stored: a running run that was asked to stop.
    "CANCELLING": 0,
    **{f"OUTCOME_{outcome.name}": code for outcome, code in OUTCOME_CODES.items()},
    **{f"JOB_{state.name}": code for state, code in JOB_STATE_CODES.items()},
    **{f"DEAD_LETTER_{name}": code for name, code in DEAD_LETTER_CODES.items()},
    "TICK_RUN": DECISION_CODES["run"],
    "TICK_SKIPPED": DECISION_CODES["skipped"],
    "ORIGIN_FIXED_DELAY": TICK_OF_DELAY,
    "ORIGIN_BACKFILL": BACKFILL,
    "SUCCEEDED_CLASS": SUCCEEDED_CLASS,
    "UNSUCCESSFUL_CLASS": UNSUCCESSFUL_CLASS,
    "CLASS_WIDTH": CLASS_WIDTH,
    "KEPT_BUCKET": KEPT_BUCKET,
    "FOREVER_BUCKET": FOREVER_BUCKET,
    "WORKER": SESSION_KINDS["worker"],
    "SCHEDULER": SESSION_KINDS["scheduler"],
    **{f"{kind.name}_NAME": int(kind) for kind in NameKind},
    "LIMIT_PER_PERIOD": PER_PERIOD,
    "LIMIT_BREAKER": BREAKER,
    "HEAD_START": HEAD_START,
    "LATE_PENALTY": LATE_PENALTY,
    "IDLE_PRIORITY": IDLE,
    "MINUTE": MINUTE,
    "HOUR": HOUR,
    "DAY": DAY,
}
