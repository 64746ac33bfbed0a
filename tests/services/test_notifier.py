"""Alerts on the memory store, in virtual time: from an event to the run that delivers the alert."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random

import msgspec
import pytest

from mainspring.core.model.alerts.alert_messages import QUEUE, AlertStage, Message
from mainspring.core.model.alerts.notification_rules import NotificationRules, read_notifications
from mainspring.core.model.base.errors import StoreUnavailable
from mainspring.core.model.base.ids import SessionId
from mainspring.core.model.base.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.core.model.runs.completion import complete_failure, complete_success
from mainspring.core.model.runs.new_run import About, JobRef, NewRun
from mainspring.core.model.runs.reserved import NOTIFICATION
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.model.schedules.slo import MISSED, RECOVERED, Slo
from mainspring.core.ports.storage.slos import SloResult
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.core.store import Demand
from mainspring.core.submit.jobs import Jobs
from mainspring.features.alerts.service import Notifier
from mainspring.features.events.service import Publisher
from mainspring.stores.memory import MemoryStore
from mainspring.testing.virtual_time import VirtualClock
from tests.support.builders import a_job, a_policy, a_run, a_spec, a_worker, every
from tests.support.virtual import in_virtual_time

CHANNELS = {"ops": ("slack", "secret=SLACK_URL"), "pager": ("pagerduty", "secret=PAGER_KEY")}
RULES = {"all": ("on=failed", "on=dead", "on=slo-missed", "on=recovered", "to=ops"), "worst": ("on=dead", "to=pager")}


def read_rules(rules: Mapping[str, tuple[str, ...]] = RULES) -> NotificationRules:
    return read_notifications(CHANNELS, rules, {})


class FailingStore(MemoryStore):
    """A store whose writes of alert state can fail, before or after they are applied."""

    lose: str = ""

    async def change_notification_rows(self, rev: int, changes: Mapping[str, bytes | None]) -> bool:
        if self.lose == "before":
            raise StoreUnavailable("away for the test")
        done = await super().change_notification_rows(rev, changes)
        if self.lose == "after":
            raise StoreUnavailable("no answer")
        return done


class World:
    def __init__(self, rules: NotificationRules | None = None) -> None:
        self.clock = VirtualClock()
        self.store = FailingStore(self.clock, 4)
        self.rules = rules or read_rules()
        self.jobs = Jobs(self.store, LocalWakeups(), self.clock, Random(1), shards=4)
        self.owned = {0: 1}
        self.worker = SessionId(0)
        self.claims = 0

    def scheduler(self) -> tuple[Notifier, Publisher]:
        notifier = Notifier(self.store, self.jobs, self.rules, LocalWakeups(), self.clock, lambda: self.owned)
        return notifier, Publisher(self.store, notifier, LocalWakeups(), self.clock, lambda: self.owned, DAY)

    async def start(self, *runs: NewRun, queue: str = "default") -> list[HeldRun]:
        if runs:
            await self.store.submit(runs)
        self.worker = self.worker or await self.store.open_session(a_worker(ttl=1_000 * HOUR))
        self.claims += 1
        return await self.store.claim(self.worker, self.claims, [Demand(queue, 100)])

    async def fail(self, *held: HeldRun, error: str = "ValueError: no") -> None:
        now = await self.store.now()
        await self.store.complete([complete_failure(run, error, Random(1), now=now) for run in held])

    async def succeed(self, *held: HeldRun) -> None:
        await self.store.complete([complete_success(run, None) for run in held])

    async def messages(self) -> list[tuple[str, list[tuple[str, AlertStage, int]]]]:
        """Claim and complete the runs that deliver alerts, and return the alerts."""
        held = await self.start(queue=QUEUE)
        assert {run.task for run in held} <= {NOTIFICATION}
        await self.succeed(*held)
        read = [msgspec.json.decode(run.payload, type=Message) for run in held]
        return [
            (message.channel, [(entry.name, entry.stage, entry.count) for entry in message.alert.entries])
            for message in read
        ]


@asynccontextmanager
async def notifying(rules: NotificationRules | None = None) -> AsyncIterator[World]:
    """A world whose notifier and publisher have started."""
    world = World(rules)
    notifier, publisher = world.scheduler()
    async with notifier, publisher:
        await world.clock.sleep(2 * SECOND)
        yield world


async def own_shards(world: World) -> SessionId:
    owner = await world.store.join("scheduler", 1_000 * HOUR)
    await world.store.take(owner, range(4))
    return owner


def read_address(run: HeldRun) -> str:
    return msgspec.json.decode(run.payload, type=Message).to


@in_virtual_time
async def test_a_problem_is_alerted_when_it_fails_dies_and_recovers() -> None:
    async with notifying() as world:
        runs = [a_run(policy=a_policy(retries=1)) for _ in range(5)]
        await world.fail(*await world.start(*runs))
        await world.clock.sleep(29 * SECOND)
        assert await world.messages() == []
        await world.clock.sleep(5 * SECOND)
        assert await world.messages() == [("ops", [("greet", AlertStage.FAILED, 5)])]
        await world.clock.sleep(HOUR)
        await world.store.stage(await own_shards(world), range(4), 100)
        await world.fail(*(await world.start())[:2])
        await world.clock.sleep(3 * SECOND)
        assert await world.messages() == [("pager", [("greet", AlertStage.DEAD, 7)])]
        await world.clock.sleep(MINUTE)
        assert await world.messages() == [("ops", [("greet", AlertStage.DEAD, 7)])]
        await world.succeed(*await world.start(a_run()))
        await world.clock.sleep(3 * SECOND)
        assert await world.messages() == [("pager", [("greet", AlertStage.RECOVERED, 7)])]
        await world.clock.sleep(MINUTE)
        assert await world.messages() == [("ops", [("greet", AlertStage.RECOVERED, 7)])]
        assert not any(name.startswith("problem:") for name in (await world.store.notification_rows()).rows)


@in_virtual_time
async def test_a_retry_that_succeeds_at_once_is_alerted_as_recovered() -> None:
    async with notifying() as world:
        # Failure and success are both in the outbox before it is read.
        world.owned = {}
        await world.clock.sleep(SECOND)
        await world.fail(*await world.start(a_run(policy=a_policy(retries=1))))
        await world.succeed(*await world.start(a_run()))
        world.owned = {0: 2}
        await world.clock.sleep(2 * MINUTE)
        assert await world.messages() == [("ops", [("greet", AlertStage.RECOVERED, 1)])]


@in_virtual_time
async def test_different_errors_are_different_problems_and_numbers_in_them_are_not() -> None:
    async with notifying() as world:
        one, two, three = await world.start(*(a_run(policy=a_policy(retries=0)) for _ in range(3)))
        await world.fail(one, error="Traceback\nValueError: order 7")
        await world.fail(two, error="Traceback\nValueError: order 8")
        await world.fail(three, error="Traceback\nKeyError: 'x'")
        await world.clock.sleep(5 * SECOND)
        [(channel, entries)] = await world.messages()
        assert channel == "pager"
        assert sorted(count for _, _, count in entries) == [1, 2]


@in_virtual_time
async def test_dead_runs_are_alerted_although_many_failed_attempts_came_first() -> None:
    async with notifying() as world:
        held = await world.start(
            *(a_run(policy=a_policy(retries=1)) for _ in range(25)),
            *(a_run(policy=a_policy(retries=0)) for _ in range(30)),
        )
        # The notifier reads all of it as one batch.
        world.owned = {}
        await world.clock.sleep(SECOND)
        retried = {run.id for run in held if run.policy.retry.max_retries}
        await world.fail(*(run for run in held if run.id in retried))
        await world.fail(*(run for run in held if run.id not in retried))
        world.owned = {0: 2}
        await world.clock.sleep(MINUTE)
        assert await world.messages() == [
            ("pager", [("greet", AlertStage.DEAD, 55)]),
            ("ops", [("greet", AlertStage.DEAD, 55)]),
        ]


@in_virtual_time
async def test_each_owner_is_alerted_although_many_runs_of_others_failed_first() -> None:
    channels = {"one": CHANNELS["ops"], "two": CHANNELS["ops"]}
    rules = {"theirs": ("on=failed", "to=owner")}
    async with notifying(read_notifications(channels, rules, {"anna": ("one",), "bert": ("two",)})) as world:
        owners = ["anna"] * 30 + ["bert"] * 3
        held = await world.start(*(a_run(policy=a_policy(retries=1), about=About(owner=owner)) for owner in owners))
        world.owned = {}
        await world.clock.sleep(SECOND)
        await world.fail(*held)
        world.owned = {0: 2}
        await world.clock.sleep(MINUTE)
        assert {channel for channel, _ in await world.messages()} == {"one", "two"}


@in_virtual_time
async def test_each_mail_address_has_its_own_run_and_its_own_order() -> None:
    mail = "email server=localhost:25 tls=none from=m@x.example to=a@x.example to=b@x.example group=0s"
    rules = {"dead": ("on=dead", "on=recovered", "to=desk")}
    async with notifying(read_notifications({"desk": tuple(mail.split())}, rules, {})) as world:
        await world.fail(*await world.start(a_run(policy=a_policy(retries=0))))
        await world.clock.sleep(5 * SECOND)
        first, late = sorted(await world.start(queue=QUEUE), key=read_address)
        assert (read_address(first), read_address(late)) == ("a@x.example", "b@x.example")
        await world.succeed(first)
        owner = await own_shards(world)
        for _ in range(3):
            await world.fail(late, error="MailFailed: 450")
            await world.clock.sleep(10 * MINUTE)
            await world.store.stage(owner, range(4), 100)
            [late] = await world.start(queue=QUEUE)
            assert read_address(late) == "b@x.example"
        # The next alert waits only for the earlier alert to the same address.
        await world.succeed(*await world.start(a_run()))
        await world.clock.sleep(MINUTE)
        [over] = await world.start(queue=QUEUE)
        assert read_address(over) == "a@x.example"
        await world.succeed(late)
        [over] = await world.start(queue=QUEUE)
        assert read_address(over) == "b@x.example"


@in_virtual_time
async def test_an_alert_names_the_job_or_the_run_and_its_owner() -> None:
    rules = {"tagged": ("on=dead", "to=pager", "job=night*", "tag=vital")}
    async with notifying(read_rules(rules)) as world:
        spec = a_spec(name="nightly", schedule=every(MINUTE), owner="ann", tags=("vital",), policy=a_policy(retries=0))
        [put] = await world.store.put_jobs([a_job(spec)])
        about = About(name="night-shift", owner="bob", tags=("vital",))
        held = await world.start(
            a_run(policy=a_policy(retries=0), about=about),
            a_run(policy=a_policy(retries=0), job=JobRef(id=put.job.id, version=1)),
        )
        await world.fail(*held)
        await world.clock.sleep(5 * SECOND)
        runs = await world.start(queue=QUEUE)
        entries = [entry for run in runs for entry in msgspec.json.decode(run.payload, type=Message).alert.entries]
        assert sorted((entry.name, entry.owner) for entry in entries) == [("night-shift", "bob"), ("nightly", "ann")]


@in_virtual_time
async def test_a_missed_objective_recovers_when_all_of_the_job_are_met() -> None:
    async with notifying() as world:
        spec = a_spec(name="nightly", schedule=every(MINUTE), slo=Slo(start_within=SECOND, succeed_every=HOUR))
        [put] = await world.store.put_jobs([a_job(spec)])
        now = await world.store.now()

        async def complete(event: str, *, late: bool, quiet: bool) -> None:
            [due] = await world.store.slos_due(10)
            state = msgspec.structs.replace(
                due.state, late_since=now if late else None, quiet_since=now if quiet else None
            )
            completed = SloResult(job=put.job.id, rev=due.rev, state=state, next_check=now, events=(event,))
            assert await world.store.save_slos([completed]) == 1

        await complete(MISSED, late=True, quiet=False)
        await complete(MISSED, late=True, quiet=True)
        await world.clock.sleep(MINUTE)
        assert await world.messages() == [("ops", [("nightly", AlertStage.SLO_MISSED, 2)])]
        await complete(RECOVERED, late=False, quiet=True)
        await world.clock.sleep(HOUR)
        assert await world.messages() == []
        await complete(RECOVERED, late=False, quiet=False)
        await world.clock.sleep(2 * MINUTE)
        assert await world.messages() == [("ops", [("nightly", AlertStage.RECOVERED, 2)])]


@in_virtual_time
async def test_an_alert_that_cannot_be_delivered_raises_no_alert() -> None:
    async with notifying() as world:
        await world.fail(*await world.start(a_run(policy=a_policy(retries=0))))
        await world.clock.sleep(5 * SECOND)
        owner, tries = await own_shards(world), 0
        while held := await world.start(queue=QUEUE):
            tries += len(held)
            await world.fail(*held, error="HttpFailed: 500")
            await world.clock.sleep(10 * MINUTE)
            await world.store.stage(owner, range(4), 100)
        # Both deliveries have failed for good.
        assert tries == 2 * 16
        kept = await world.store.notification_rows()
        assert [name for name in kept.rows if name.startswith("problem:")] != []
        assert all(b"HttpFailed" not in body for body in kept.rows.values())
        assert await world.messages() == []


@pytest.mark.parametrize("lose", ["before", "after"])
@in_virtual_time
async def test_each_alert_is_sent_once_although_the_store_was_unavailable(lose: str) -> None:
    async with notifying() as world:
        world.store.lose = lose
        await world.fail(*await world.start(a_run(policy=a_policy(retries=0))))
        await world.clock.sleep(10 * SECOND)
        world.store.lose = ""
        await world.clock.sleep(2 * MINUTE)
        messages = await world.messages()
        assert sorted(channel for channel, _ in messages) == ["ops", "pager"]


@in_virtual_time
async def test_two_notifiers_of_one_shard_send_each_alert_once() -> None:
    world = World()
    frozen, publisher = world.scheduler()
    async with publisher, frozen:
        await world.clock.sleep(2 * SECOND)
        await world.fail(*await world.start(a_run(policy=a_policy(retries=1))))
        await world.clock.sleep(10 * SECOND)
        # Both own the shard by their own account.
        notifier, other = world.scheduler()
        async with notifier, other:
            await world.clock.sleep(5 * MINUTE)
            assert await world.messages() == [("ops", [("greet", AlertStage.FAILED, 1)])]
            await world.succeed(*await world.start(a_run()))
            await world.clock.sleep(5 * MINUTE)
            assert await world.messages() == [("ops", [("greet", AlertStage.RECOVERED, 1)])]


@in_virtual_time
async def test_the_notifier_reads_successes_only_while_there_is_a_problem() -> None:
    async with notifying() as world:
        notifier, _ = world.scheduler()
        await notifier.open("/mainspring/x")
        await notifier.publish([], 1)
        await notifier.start()
        await world.clock.sleep(2 * SECOND)
        assert not notifier.demands("run.succeeded", "default")
        assert not notifier.demands("run.started", "default")
        assert not notifier.demands("run.failed", "acme")
        assert notifier.demands("run.failed", "default")
        assert notifier.demands("run.succeeded", "default")
        await notifier.stop()
