"""Group failures into problems, and problems into messages for each target. No I/O, no clock.

A problem is one kind of error of one job. It opens with the first failure. It closes when a run has succeeded and
nothing has failed for `recovered_after`. However often the error occurs in between, each target gets one alert for it,
and one more if it gets worse.

Pending alerts are collected by target, so that several of them become one message. The message is sent when the
target's channel allows it: after the channel's grouping time, outside its quiet hours, and within its rate limit.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping

import msgspec

from mainspring.core.model.alerts.channels import Channel, ChannelKind
from mainspring.core.model.alerts.notices import MOST_TOLD, Entry, Notice, On
from mainspring.core.model.alerts.notification_rules import NotificationRules, Trouble, Wish
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, Instant

#: Limits of the problems kept, in total and of one tenant. New problems beyond them are only counted.
MOST_PROBLEMS = 5_000
MOST_OF_A_TENANT = 1_000
#: Kinds of errors kept apart for one job or task; all further kinds are grouped as one. Some error texts contain user
#: input, so that every one of them is different.
MOST_KINDS = 50
_OTHER_KINDS = "others"
#: A problem without a new failure for this long is dropped without an alert. A job may run, and fail, only once a
#: month.
FORGOTTEN_AFTER = 100 * DAY
#: Pending alerts kept in full for one target; the others are counted. Recovery alerts are always kept.
_MOST_WAITING = 200
_PROBLEM, _LANE = "problem:", "lane:"
#: Fingerprint of SLO problems. A successful run does not close them: only meeting the objective again does.
SLO = "slo"


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """The alerts that a target has received for a problem, or will receive with its next message."""

    stages: tuple[On, ...] = ()
    urgent: bool = False
    recovered: bool = False


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    id: str
    tenant: str
    subject: str
    fingerprint: str
    stage: On
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
    healed: Instant | None = None
    told: dict[str, Told] = {}

    def entry(self, stage: On, at: Instant, *, first: bool) -> Entry:
        return Entry(
            problem=self.id,
            stage=stage,
            tenant=self.tenant,
            name=self.name,
            task=self.task,
            queue=self.queue,
            owner=self.owner,
            run=self.run,
            job=self.job,
            error="" if stage is On.RECOVERED else self.error,
            since=self.since,
            at=at,
            count=self.count,
            first=first,
        )


class Waiting(msgspec.Struct, frozen=True, omit_defaults=True):
    entry: Entry
    since: Instant
    urgent: bool = False
    #: For a recovery alert: the stages of the problem that the target has received.
    heard: tuple[On, ...] = ()


class Delivery(msgspec.Struct, frozen=True):
    """A message that becomes one run. Its number is never used again for the same target."""

    number: int
    notice: Notice


class Lane(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The pending and outgoing alerts of one target."""

    #: By problem id.
    waiting: dict[str, Waiting] = {}
    #: Number of alerts that are only counted, and since when.
    more: int = 0
    more_since: Instant | None = None
    #: Time of the last alert that was only counted. Set while an incident about them is open.
    overflow: Instant | None = None
    #: When messages were sent, within the last hour.
    sent: tuple[Instant, ...] = ()
    outgoing: tuple[Delivery, ...] = ()
    number: int = 0


class Situation:
    """All problems and pending alerts, as held by one process. Callers save ``changes()`` before they act on one."""

    def __init__(self, rules: NotificationRules, source: str, rows: Mapping[str, bytes] | None = None) -> None:
        self.rules = rules
        self._source = source
        self.problems: dict[str, Problem] = {}
        self.lanes: dict[str, Lane] = {}
        #: Problem ids by tenant and subject.
        self._by_subject: dict[tuple[str, str], set[str]] = {}
        self._of_tenant: Counter[str] = Counter()
        self._changed: dict[str, None] = {}
        for name, body in (rows or {}).items():
            if name.startswith(_PROBLEM):
                self._keep(msgspec.json.decode(body, type=Problem))
            elif name.startswith(_LANE) and rules.knows(name.removeprefix(_LANE)):
                self.lanes[name.removeprefix(_LANE)] = msgspec.json.decode(body, type=Lane)

    # Incoming events.

    def trouble(self, trouble: Trouble) -> None:
        trouble = self._told_apart(trouble)
        identifier = self._id(trouble)
        problem = self.problems.get(identifier)
        wishes = self.rules.wishes(trouble)
        if problem is None:
            if not wishes:
                return
            if len(self.problems) >= MOST_PROBLEMS or self._of_tenant[trouble.tenant] >= MOST_OF_A_TENANT:
                for target in (target for target, wish in wishes.items() if wish.stage is not None):
                    self._count(target, trouble.at)
                return
            problem = Problem(
                id=identifier,
                tenant=trouble.tenant,
                subject=trouble.subject,
                fingerprint=trouble.fingerprint,
                stage=trouble.stage,
                name=trouble.name,
                since=trouble.at,
                last=trouble.at,
            )
            self._keep(problem)
        for field in ("name", "task", "queue", "owner", "run", "job", "error"):
            setattr(problem, field, getattr(trouble, field))
        problem.count += 1
        problem.last = max(problem.last, trouble.at)
        problem.healed = None
        if trouble.stage is not On.FAILED:
            problem.stage = trouble.stage
        self._touch(_PROBLEM + identifier)
        for target, wish in wishes.items():
            self._tell(problem, target, wish, trouble.at)

    def has_open(self, tenant: str, subject: str) -> bool:
        return (tenant, subject) in self._by_subject

    def has_open_of(self, tenant: str) -> bool:
        return tenant in self._of_tenant

    def succeeded(self, tenant: str, subject: str, at: Instant) -> None:
        """Mark the problems of a subject as healed after a run succeeded. SLO problems stay open."""
        for identifier in self._by_subject.get((tenant, subject), ()):
            if self.problems[identifier].fingerprint != SLO:
                self._heal(identifier, at)

    def met_again(self, tenant: str, subject: str, at: Instant) -> None:
        """Mark the SLO problems of a subject as healed after it met all of its objectives again."""
        for identifier in self._by_subject.get((tenant, subject), ()):
            if self.problems[identifier].fingerprint == SLO:
                self._heal(identifier, at)

    def advance(self, now: Instant) -> None:
        """Apply the passing of time: close and drop problems, and send the messages that are due."""
        for problem in list(self.problems.values()):
            if problem.healed is not None and now >= problem.last + self.rules.recovered_after:
                self._close(problem, now)
            elif now >= problem.last + FORGOTTEN_AFTER:
                self._drop(problem)
        for target, lane in list(self.lanes.items()):
            if lane.waiting or lane.more:
                self._speak(target, lane, now)
            elif lane.overflow is not None:
                self._end_overflow(target, lane, now)
            elif not lane.outgoing and (not lane.sent or lane.sent[-1] <= now - HOUR):
                del self.lanes[target]
                self._touch(_LANE + target)

    def outgoing(self) -> dict[str, tuple[Delivery, ...]]:
        """Return the messages that have yet to become runs, by target."""
        return {target: lane.outgoing for target, lane in self.lanes.items() if lane.outgoing}

    def delivered(self, target: str) -> None:
        """Clear a target's outgoing messages after all of them were submitted as runs."""
        self.lanes[target].outgoing = ()
        self._touch(_LANE + target)

    @property
    def rests(self) -> bool:
        """Whether nothing changes by time alone: no healed problem and nothing pending."""
        return not any(problem.healed is not None for problem in self.problems.values()) and not any(
            lane.waiting or lane.more or lane.overflow or lane.outgoing for lane in self.lanes.values()
        )

    def changes(self) -> dict[str, bytes | None]:
        """Return the rows to save since the last call; None marks a row to delete."""
        changed, self._changed = self._changed, {}
        return {name: self._row(name) for name in changed}

    # Internals.

    def _told_apart(self, trouble: Trouble) -> Trouble:
        """Group the trouble under "others" if its subject already has ``MOST_KINDS`` kinds of errors."""
        known = self._by_subject.get((trouble.tenant, trouble.subject), ())
        if len(known) < MOST_KINDS or trouble.fingerprint == SLO or self._id(trouble) in known:
            return trouble
        return msgspec.structs.replace(
            trouble, fingerprint=_OTHER_KINDS, error=f"one of many kinds of errors: {trouble.error}"
        )

    def _id(self, trouble: Trouble) -> str:
        return self._digest(trouble.tenant, trouble.subject, trouble.fingerprint)

    def _digest(self, *words: str) -> str:
        """Hash the words together with the source, so that ids of different stores differ."""
        text = "\0".join((self._source, *words))
        return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()

    def _keep(self, problem: Problem) -> None:
        self.problems[problem.id] = problem
        self._of_tenant[problem.tenant] += 1
        self._by_subject.setdefault((problem.tenant, problem.subject), set()).add(problem.id)

    def _drop(self, problem: Problem) -> None:
        del self.problems[problem.id]
        self._of_tenant[problem.tenant] -= 1
        if not self._of_tenant[problem.tenant]:
            del self._of_tenant[problem.tenant]
        key = (problem.tenant, problem.subject)
        self._by_subject[key].discard(problem.id)
        if not self._by_subject[key]:
            del self._by_subject[key]
        self._touch(_PROBLEM + problem.id)

    def _heal(self, identifier: str, at: Instant) -> None:
        problem = self.problems[identifier]
        if problem.healed is None:
            problem.healed = at
            self._touch(_PROBLEM + identifier)

    def _tell(self, problem: Problem, target: str, wish: Wish, at: Instant) -> None:
        told = problem.told.get(target, Told())
        lane = self.lanes.setdefault(target, Lane())
        ended = lane.waiting.get(problem.id)
        heard = told.stages
        if ended is not None and ended.entry.stage is On.RECOVERED and wish.stage is not None:
            # The problem is back before its recovery alert was sent: drop that alert.
            heard = ended.heard
            del lane.waiting[problem.id]
            self._touch(_LANE + target)
        # After a "dead" alert the target gets no "failed" alert.
        new = () if wish.stage is None or {wish.stage, On.DEAD} & {*heard} else (wish.stage,)
        problem.told[target] = Told((*heard, *new), told.urgent or wish.urgent, told.recovered or wish.recovered)
        for stage in new:
            self._wait(target, problem.entry(stage, at, first=not heard), at, urgent=wish.urgent)

    def _close(self, problem: Problem, now: Instant) -> None:
        for target, told in problem.told.items():
            if told.recovered and self.rules.knows(target):
                known = self.lanes.setdefault(target, Lane()).waiting.get(problem.id)
                entry = problem.entry(On.RECOVERED, problem.healed or now, first=False)
                self._wait(target, entry, now, urgent=told.urgent, heard=_heard(told, known))
        self._drop(problem)

    def _wait(self, target: str, entry: Entry, since: Instant, *, urgent: bool, heard: tuple[On, ...] = ()) -> None:
        lane = self.lanes.setdefault(target, Lane())
        self._touch(_LANE + target)
        known = lane.waiting.get(entry.problem)
        if known is not None:
            # Only the current state of a problem is sent. The target has not received the pending alert yet.
            merged = msgspec.structs.replace(entry, first=known.entry.first)
            lane.waiting[entry.problem] = Waiting(merged, known.since, known.urgent or urgent, heard)
        elif len(lane.waiting) < _MOST_WAITING or entry.stage is On.RECOVERED:
            lane.waiting[entry.problem] = Waiting(entry, since, urgent, heard)
        else:
            self._count(target, since)

    def _count(self, target: str, at: Instant) -> None:
        lane = self.lanes.setdefault(target, Lane())
        lane.more_since = at if lane.more_since is None else lane.more_since
        lane.more += 1
        if lane.overflow is not None:
            lane.overflow = max(lane.overflow, at)
        self._touch(_LANE + target)

    def _speak(self, target: str, lane: Lane, now: Instant) -> None:
        channel = self.rules.channel_of(target)
        quiet = channel.quiet is not None and channel.quiet.covers(now)
        ready = {name: item for name, item in lane.waiting.items() if item.urgent or not quiet}
        more = 0 if quiet else lane.more
        times = [item.since for item in ready.values()]
        oldest = min([*times, lane.more_since] if more and lane.more_since is not None else times, default=None)
        recent = tuple(at for at in lane.sent if at > now - HOUR)
        if oldest is None or now < oldest + channel.group or len(recent) >= channel.rate:
            return
        held = oldest if now > oldest + channel.group + MINUTE else None
        notice, told = self._notice(channel, [self._newest(item.entry) for item in ready.values()], more, held)
        lane.waiting = {name: item for name, item in lane.waiting.items() if name not in told}
        if more:
            lane.more, lane.more_since = 0, None
            lane.overflow = now if channel.kind is ChannelKind.PAGERDUTY else None
            notice = msgspec.structs.replace(notice, more_key=self._digest(target))
        if notice.entries or notice.more:
            self._send(target, lane, notice, now)
        self._touch(_LANE + target)

    def _end_overflow(self, target: str, lane: Lane, now: Instant) -> None:
        """Close the overflow incident an hour after the last alert that was only counted, within the rate limit.

        Problems that are still open would have been counted again since, or sent as alerts of their own.
        """
        recent = [at for at in lane.sent if at > now - HOUR]
        if lane.overflow is None or now < lane.overflow + HOUR or len(recent) >= self.rules.channel_of(target).rate:
            return
        lane.overflow = None
        self._send(target, lane, Notice(more_key=self._digest(target), more_over=True), now)

    def _send(self, target: str, lane: Lane, notice: Notice, now: Instant) -> None:
        lane.sent = (*(at for at in lane.sent if at > now - HOUR), now)
        # The state of an idle target is deleted; taking the number from the clock keeps numbers growing after that.
        lane.number = max(now, lane.number + 1)
        lane.outgoing = (*lane.outgoing, Delivery(lane.number, notice))
        self._touch(_LANE + target)

    def _newest(self, entry: Entry) -> Entry:
        """Update the alert to the problem's current state if the problem is open: more runs may have failed since."""
        problem = self.problems.get(entry.problem)
        if problem is None or entry.stage is On.RECOVERED:
            return entry
        return problem.entry(entry.stage, entry.at, first=entry.first)

    def _notice(
        self, channel: Channel, entries: list[Entry], more: int, held: Instant | None
    ) -> tuple[Notice, set[str]]:
        """Build the message, and return it with the ids of the problems that it settles.

        PagerDuty gets each problem as an event of its own, so entries beyond ``MOST_TOLD`` stay pending.
        """
        if channel.kind is ChannelKind.PAGERDUTY:
            unheard = {entry.problem for entry in entries if entry.unheard}
            told = [entry for entry in entries if entry.problem not in unheard][:MOST_TOLD]
            done = unheard | {entry.problem for entry in told}
        else:
            # Open problems before recovered ones, each group in order of arrival.
            entries.sort(key=lambda entry: entry.stage is On.RECOVERED)
            told, more = entries[:MOST_TOLD], more + len(entries[MOST_TOLD:])
            done = {entry.problem for entry in entries}
        return Notice(entries=tuple(told), more=more, held_since=held, url=self.rules.url), done

    def _touch(self, name: str) -> None:
        self._changed[name] = None

    def _row(self, name: str) -> bytes | None:
        if name.startswith(_PROBLEM):
            problem = self.problems.get(name.removeprefix(_PROBLEM))
            return None if problem is None else msgspec.json.encode(problem)
        lane = self.lanes.get(name.removeprefix(_LANE))
        return None if lane is None else msgspec.json.encode(lane)


def _heard(told: Told, known: Waiting | None) -> tuple[On, ...]:
    """Return the stages that a target has received for a problem, without the alert that is still pending."""
    if known is None:
        return told.stages
    return () if known.entry.first else tuple(stage for stage in told.stages if stage is not known.entry.stage)


def open_problems(rows: Mapping[str, bytes]) -> list[Problem]:
    """Decode the open problems from the stored rows, newest first."""
    found = [msgspec.json.decode(body, type=Problem) for name, body in rows.items() if name.startswith(_PROBLEM)]
    return sorted(found, key=lambda problem: (-problem.last, problem.id))


def waiting_of(rows: Mapping[str, bytes]) -> dict[str, int]:
    """Count the pending alerts of each target."""
    lanes = {name: msgspec.json.decode(body, type=Lane) for name, body in rows.items() if name.startswith(_LANE)}
    return {name.removeprefix(_LANE): len(lane.waiting) + lane.more for name, lane in lanes.items()}
