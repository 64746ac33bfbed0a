"""Telling people of problems, on the store in memory, in virtual time: from what happens to the run of a message."""

from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
import pytest

from mainspring.adapters.store.memory import MemoryStore
from mainspring.adapters.wakeups.local import LocalWakeups
from mainspring.control.jobs import Jobs
from mainspring.control.notifications import Notifier
from mainspring.control.publisher import Publisher
from mainspring.domain.errors import StoreUnavailable
from mainspring.domain.ids import SessionId
from mainspring.domain.instant import DAY, HOUR, MINUTE, SECOND
from mainspring.domain.notices import QUEUE, Message, On
from mainspring.domain.notification_rules import NotificationRules, read_notifications
from mainspring.domain.reserved import NOTIFICATION
from mainspring.domain.run import About, HeldRun, JobRef, NewRun, settle_failure, settle_success
from mainspring.domain.slo import MISSED, RECOVERED, Slo
from mainspring.ports.slos import SloSettled
from mainspring.ports.store import Want
from mainspring.testing.virtual_time import VirtualClock, run_virtual
from tests.support.builders import a_job, a_policy, a_run, a_spec, a_worker, every

CHANNELS = {"ops": ("slack", "secret=SLACK_URL"), "pager": ("pagerduty", "secret=PAGER_KEY")}
RULES = {"all": ("on=failed", "on=dead", "on=slo-missed", "on=recovered", "to=ops"), "worst": ("on=dead", "to=pager")}


def the_rules(rules: Mapping[str, tuple[str, ...]] = RULES) -> NotificationRules:
    return read_notifications(CHANNELS, rules, {})


class FailingStore(MemoryStore):
    """One whose writes of what is kept of problems can be lost, before or after they are done."""

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
        self.rules = rules or the_rules()
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
        return await self.store.claim(self.worker, self.claims, [Want(queue, 100)])

    async def fail(self, *held: HeldRun, error: str = "ValueError: no") -> None:
        now = await self.store.now()
        await self.store.settle([settle_failure(run, error, Random(1), now=now) for run in held])

    async def succeed(self, *held: HeldRun) -> None:
        await self.store.settle([settle_success(run, None) for run in held])

    async def messages(self) -> list[tuple[str, list[tuple[str, On, int]]]]:
        """What workers would pass on, and have done so then."""
        held = await self.start(queue=QUEUE)
        assert {run.task for run in held} <= {NOTIFICATION}
        await self.succeed(*held)
        read = [msgspec.json.decode(run.payload, type=Message) for run in held]
        return [
            (message.channel, [(entry.name, entry.stage, entry.count) for entry in message.notice.entries])
            for message in read
        ]


def scenario_of(scenario: Any) -> None:
    async def run() -> None:
        world = World()
        notifier, publisher = world.scheduler()
        async with notifier, publisher:
            await world.clock.sleep(2 * SECOND)
            await scenario(world)

    run_virtual(run())


def test_from_a_failed_attempt_to_its_end() -> None:
    async def scenario(world: World) -> None:
        runs = [a_run(policy=a_policy(retries=1)) for _ in range(5)]
        await world.fail(*await world.start(*runs))
        await world.clock.sleep(29 * SECOND)
        assert await world.messages() == []
        await world.clock.sleep(5 * SECOND)
        assert await world.messages() == [("ops", [("greet", On.FAILED, 5)])]
        await world.clock.sleep(HOUR)
        await world.store.stage(await owner_of(world), range(4), 100)
        await world.fail(*(await world.start())[:2])
        await world.clock.sleep(3 * SECOND)
        assert await world.messages() == [("pager", [("greet", On.DEAD, 7)])]
        await world.clock.sleep(MINUTE)
        assert await world.messages() == [("ops", [("greet", On.DEAD, 7)])]
        await world.succeed(*await world.start(a_run()))
        await world.clock.sleep(3 * SECOND)
        assert await world.messages() == [("pager", [("greet", On.RECOVERED, 7)])]
        await world.clock.sleep(MINUTE)
        assert await world.messages() == [("ops", [("greet", On.RECOVERED, 7)])]
        assert not any(name.startswith("problem:") for name in (await world.store.notification_rows()).rows)

    scenario_of(scenario)


async def owner_of(world: World) -> SessionId:
    owner = await world.store.join("scheduler", 1_000 * HOUR)
    await world.store.take(owner, range(4))
    return owner


def test_a_retry_that_succeeds_at_once_is_told_as_over() -> None:
    async def scenario(world: World) -> None:
        # Failure and success stand in the outbox before anybody reads it.
        world.owned = {}
        await world.clock.sleep(SECOND)
        await world.fail(*await world.start(a_run(policy=a_policy(retries=1))))
        await world.succeed(*await world.start(a_run()))
        world.owned = {0: 2}
        await world.clock.sleep(2 * MINUTE)
        assert await world.messages() == [("ops", [("greet", On.RECOVERED, 1)])]

    scenario_of(scenario)


def test_different_errors_are_different_problems_and_numbers_in_them_are_not() -> None:
    async def scenario(world: World) -> None:
        one, two, three = await world.start(*(a_run(policy=a_policy(retries=0)) for _ in range(3)))
        await world.fail(one, error="Traceback\nValueError: order 7")
        await world.fail(two, error="Traceback\nValueError: order 8")
        await world.fail(three, error="Traceback\nKeyError: 'x'")
        await world.clock.sleep(5 * SECOND)
        [(channel, entries)] = await world.messages()
        assert channel == "pager"
        assert sorted(count for _, _, count in entries) == [1, 2]

    scenario_of(scenario)


def test_deaths_are_told_however_many_attempts_failed_before_them() -> None:
    async def scenario(world: World) -> None:
        held = await world.start(
            *(a_run(policy=a_policy(retries=1)) for _ in range(25)),
            *(a_run(policy=a_policy(retries=0)) for _ in range(30)),
        )
        # All of it is one batch to whoever reads it.
        world.owned = {}
        await world.clock.sleep(SECOND)
        retried = {run.id for run in held if run.policy.retry.max_retries}
        await world.fail(*(run for run in held if run.id in retried))
        await world.fail(*(run for run in held if run.id not in retried))
        world.owned = {0: 2}
        await world.clock.sleep(MINUTE)
        assert await world.messages() == [("pager", [("greet", On.DEAD, 55)]), ("ops", [("greet", On.DEAD, 55)])]

    scenario_of(scenario)


def test_each_owner_hears_of_his_own_runs_however_many_of_others_failed_before() -> None:
    async def scenario() -> None:
        channels = {"one": CHANNELS["ops"], "two": CHANNELS["ops"]}
        rules = {"theirs": ("on=failed", "to=owner")}
        world = World(read_notifications(channels, rules, {"anna": ("one",), "bert": ("two",)}))
        notifier, publisher = world.scheduler()
        async with notifier, publisher:
            await world.clock.sleep(2 * SECOND)
            owners = ["anna"] * 30 + ["bert"] * 3
            held = await world.start(*(a_run(policy=a_policy(retries=1), about=About(owner=owner)) for owner in owners))
            world.owned = {}
            await world.clock.sleep(SECOND)
            await world.fail(*held)
            world.owned = {0: 2}
            await world.clock.sleep(MINUTE)
            assert {channel for channel, _ in await world.messages()} == {"one", "two"}

    run_virtual(scenario())


def test_of_several_addresses_each_has_a_run_and_who_has_it_does_not_wait_for_others() -> None:
    async def scenario() -> None:
        mail = "email server=localhost:25 tls=none from=m@x.example to=a@x.example to=b@x.example group=0s"
        rules = {"dead": ("on=dead", "on=recovered", "to=desk")}
        world = World(read_notifications({"desk": tuple(mail.split())}, rules, {}))
        notifier, publisher = world.scheduler()
        async with notifier, publisher:
            await world.clock.sleep(2 * SECOND)
            await world.fail(*await world.start(a_run(policy=a_policy(retries=0))))
            await world.clock.sleep(5 * SECOND)
            first, late = sorted(await world.start(queue=QUEUE), key=address_of)
            assert (address_of(first), address_of(late)) == ("a@x.example", "b@x.example")
            await world.succeed(first)
            owner = await owner_of(world)
            for _ in range(3):
                await world.fail(late, error="MailFailed: 450")
                await world.clock.sleep(10 * MINUTE)
                await world.store.stage(owner, range(4), 100)
                [late] = await world.start(queue=QUEUE)
                assert address_of(late) == "b@x.example"
            # What comes next passes who is late in nobody's line but his own.
            await world.succeed(*await world.start(a_run()))
            await world.clock.sleep(MINUTE)
            [over] = await world.start(queue=QUEUE)
            assert address_of(over) == "a@x.example"
            await world.succeed(late)
            [over] = await world.start(queue=QUEUE)
            assert address_of(over) == "b@x.example"

    run_virtual(scenario())


def address_of(run: HeldRun) -> str:
    return msgspec.json.decode(run.payload, type=Message).to


def test_a_recurring_job_is_told_by_its_name_with_its_owner_and_a_one_off_by_its_own() -> None:
    async def run() -> None:
        rules = {"tagged": ("on=dead", "to=pager", "job=night*", "tag=vital")}
        world = World(the_rules(rules))
        notifier, publisher = world.scheduler()
        async with notifier, publisher:
            await world.clock.sleep(2 * SECOND)
            spec = a_spec(
                name="nightly", schedule=every(MINUTE), owner="ann", tags=("vital",), policy=a_policy(retries=0)
            )
            [put] = await world.store.put_jobs([a_job(spec)])
            about = About(name="night-shift", owner="bob", tags=("vital",))
            held = await world.start(
                a_run(policy=a_policy(retries=0), about=about),
                a_run(policy=a_policy(retries=0), job=JobRef(id=put.job.id, version=1)),
            )
            await world.fail(*held)
            await world.clock.sleep(5 * SECOND)
            runs = await world.start(queue=QUEUE)
            told = [entry for run in runs for entry in msgspec.json.decode(run.payload, type=Message).notice.entries]
            assert sorted((entry.name, entry.owner) for entry in told) == [("night-shift", "bob"), ("nightly", "ann")]

    run_virtual(run())


def test_an_objective_is_over_when_all_of_them_are_met() -> None:
    async def scenario(world: World) -> None:
        spec = a_spec(name="nightly", schedule=every(MINUTE), slo=Slo(start_within=SECOND, succeed_every=HOUR))
        [put] = await world.store.put_jobs([a_job(spec)])
        now = await world.store.now()

        async def settle(event: str, *, late: bool, quiet: bool) -> None:
            [due] = await world.store.slos_due(10)
            state = msgspec.structs.replace(
                due.state, late_since=now if late else None, quiet_since=now if quiet else None
            )
            settled = SloSettled(job=put.job.id, rev=due.rev, state=state, next_check=now, events=(event,))
            assert await world.store.settle_slos([settled]) == 1

        await settle(MISSED, late=True, quiet=False)
        await settle(MISSED, late=True, quiet=True)
        await world.clock.sleep(MINUTE)
        assert await world.messages() == [("ops", [("nightly", On.SLO_MISSED, 2)])]
        await settle(RECOVERED, late=False, quiet=True)
        await world.clock.sleep(HOUR)
        assert await world.messages() == []
        await settle(RECOVERED, late=False, quiet=False)
        await world.clock.sleep(2 * MINUTE)
        assert await world.messages() == [("ops", [("nightly", On.RECOVERED, 2)])]

    scenario_of(scenario)


def test_a_message_that_fails_is_no_problem_to_tell() -> None:
    async def scenario(world: World) -> None:
        await world.fail(*await world.start(a_run(policy=a_policy(retries=0))))
        await world.clock.sleep(5 * SECOND)
        owner, tries = await owner_of(world), 0
        while held := await world.start(queue=QUEUE):
            tries += len(held)
            await world.fail(*held, error="HttpFailed: 500")
            await world.clock.sleep(10 * MINUTE)
            await world.store.stage(owner, range(4), 100)
        # Both messages are dead.
        assert tries == 2 * 16
        kept = await world.store.notification_rows()
        assert [name for name in kept.rows if name.startswith("problem:")] != []
        assert all(b"HttpFailed" not in body for body in kept.rows.values())
        assert await world.messages() == []

    scenario_of(scenario)


@pytest.mark.parametrize("lose", ["before", "after"])
def test_whoever_loses_the_store_tells_everything_once(lose: str) -> None:
    async def scenario(world: World) -> None:
        world.store.lose = lose
        await world.fail(*await world.start(a_run(policy=a_policy(retries=0))))
        await world.clock.sleep(10 * SECOND)
        world.store.lose = ""
        await world.clock.sleep(2 * MINUTE)
        told = await world.messages()
        assert sorted(channel for channel, _ in told) == ["ops", "pager"]

    scenario_of(scenario)


def test_who_takes_over_goes_on_where_the_other_was_and_who_was_frozen_is_not_heard() -> None:
    async def run() -> None:
        world = World()
        frozen, publisher = world.scheduler()
        async with publisher, frozen:
            await world.clock.sleep(2 * SECOND)
            await world.fail(*await world.start(a_run(policy=a_policy(retries=1))))
            await world.clock.sleep(10 * SECOND)
            # Both believe to own the shard.
            notifier, other = world.scheduler()
            async with notifier, other:
                await world.clock.sleep(5 * MINUTE)
                assert await world.messages() == [("ops", [("greet", On.FAILED, 1)])]
                await world.succeed(*await world.start(a_run()))
                await world.clock.sleep(5 * MINUTE)
                assert await world.messages() == [("ops", [("greet", On.RECOVERED, 1)])]

    run_virtual(run())


def test_while_nothing_is_wrong_successes_are_not_looked_at() -> None:
    async def scenario(world: World) -> None:
        notifier, _ = world.scheduler()
        await notifier.open("/mainspring/x")
        await notifier.publish([], 1)
        await notifier.start()
        await world.clock.sleep(2 * SECOND)
        assert not notifier.wants("run.succeeded", "default")
        assert not notifier.wants("run.started", "default")
        assert not notifier.wants("run.failed", "acme")
        assert notifier.wants("run.failed", "default")
        assert notifier.wants("run.succeeded", "default")
        await notifier.stop()

    scenario_of(scenario)
