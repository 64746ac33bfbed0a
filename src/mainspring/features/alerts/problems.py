"""Problems: one kind of error of one job or task, and the alerts that each target has received for it."""

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from mainspring.core.model.alerts.alert_messages import AlertProblem, AlertStage
from mainspring.core.model.base.instant import Instant

#: Limits of the problems kept, in total and of one tenant. New problems beyond them are only counted.
MAX_PROBLEMS = 5_000
MAX_PROBLEMS_OF_TENANT = 1_000
#: Prefix of the names of stored problems.
PROBLEM_PREFIX = "problem:"


class SentAlerts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The alerts that a target has received for a problem, or will receive with its next message."""

    stages: tuple[AlertStage, ...] = ()
    urgent: bool = False
    recovered: bool = False


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    id: str
    tenant: str
    subject: str
    fingerprint: str
    stage: AlertStage
    name: str
    task: str = ""
    queue: str = ""
    owner: str = ""
    run: str = ""
    job: str = ""
    error: str = ""
    since: Instant
    last: Instant
    count: int = 0
    #: When a run succeeded after the last failure.
    recovered_at: Instant | None = None
    #: By target.
    alerts: dict[str, SentAlerts] = {}

    def build_entry(self, stage: AlertStage, at: Instant, *, first: bool) -> AlertProblem:
        return AlertProblem(
            problem=self.id,
            stage=stage,
            tenant=self.tenant,
            name=self.name,
            task=self.task,
            queue=self.queue,
            owner=self.owner,
            run=self.run,
            job=self.job,
            error="" if stage is AlertStage.RECOVERED else self.error,
            since=self.since,
            at=at,
            count=self.count,
            first=first,
        )


class Problems:
    """The problems of all tenants, by id, by subject and counted by tenant."""

    def __init__(self) -> None:
        self._by_id: dict[str, Problem] = {}
        #: Problem ids by tenant and subject.
        self._by_subject: dict[tuple[str, str], set[str]] = {}
        self._of_tenant: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Problem]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, identifier: str) -> bool:
        return identifier in self._by_id

    def __getitem__(self, identifier: str) -> Problem:
        return self._by_id[identifier]

    def get(self, identifier: str) -> Problem | None:
        return self._by_id.get(identifier)

    def is_full(self, tenant: str) -> bool:
        """Return whether there is no room for another problem of this tenant."""
        return len(self._by_id) >= MAX_PROBLEMS or self._of_tenant[tenant] >= MAX_PROBLEMS_OF_TENANT

    def has_tenant(self, tenant: str) -> bool:
        return tenant in self._of_tenant

    def ids_of_subject(self, tenant: str, subject: str) -> frozenset[str]:
        return frozenset(self._by_subject.get((tenant, subject), ()))

    def refresh(self, entry: AlertProblem) -> AlertProblem:
        """Update an alert to the current state of its problem if that is open: more runs may have failed since."""
        problem = self._by_id.get(entry.problem)
        if problem is None or entry.stage is AlertStage.RECOVERED:
            return entry
        return problem.build_entry(entry.stage, entry.at, first=entry.first)

    def add(self, problem: Problem) -> None:
        self._by_id[problem.id] = problem
        self._of_tenant[problem.tenant] += 1
        self._by_subject.setdefault((problem.tenant, problem.subject), set()).add(problem.id)

    def remove(self, problem: Problem) -> None:
        del self._by_id[problem.id]
        self._of_tenant[problem.tenant] -= 1
        if not self._of_tenant[problem.tenant]:
            del self._of_tenant[problem.tenant]
        key = (problem.tenant, problem.subject)
        self._by_subject[key].discard(problem.id)
        if not self._by_subject[key]:
            del self._by_subject[key]


def decode_open_problems(rows: Mapping[str, bytes]) -> list[Problem]:
    """Decode the open problems from the stored rows, newest first."""
    found = [msgspec.json.decode(body, type=Problem) for name, body in rows.items() if name.startswith(PROBLEM_PREFIX)]
    return sorted(found, key=lambda problem: (-problem.last, problem.id))
