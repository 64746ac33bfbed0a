"""Filtered lists: pages are full with any combination of filters, and a search that takes too long can be continued."""

from collections.abc import Awaitable, Callable, Iterator
from itertools import chain, combinations
from typing import TypeVar

import msgspec
import pytest

from mainspring.core.model.base.ids import JobId, RunId, made_at
from mainspring.core.model.base.instant import DAY, MILLISECOND, MINUTE, Instant, Micros
from mainspring.core.model.runs.new_run import About, NewRun
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.model.schedules.job import Job, JobState
from mainspring.core.ports.clock import Clock
from mainspring.core.ports.storage.catalog import JobFilter, Page, RunFilter
from mainspring.http.search import SEARCH_TIME, Search
from tests.support.builders import a_fire, a_job, a_policy, a_run, a_spec, a_tick, every
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api

Item = TypeVar("Item", RunView, Job)
Wanted = TypeVar("Wanted", RunFilter, JobFilter)

#: Bounds so small that no store examines all rows of these tests in one read.
SMALL = {
    "postgres.records.run_lists._CHUNK": 12,
    "postgres.records.run_lists._LARGEST_STEP": 96,
    "postgres.records.run_lists._MOST_EXAMINED": 60,
    "postgres.records.run_lists._VIEW_COST": 1,
    "postgres.records.catalog.LOOKED_AT": 12,
    "sqlite.records.list_queries.LOOKED_AT": 12,
}
LIMIT = 5


class StandingClock(Clock):
    """A search never runs out of time."""

    def __init__(self, step: Micros = 0) -> None:
        self._time, self._step = 0, step

    def now(self) -> Instant:
        raise AssertionError("a search asks for no time of day")

    def monotonic(self) -> Micros:
        self._time += self._step
        return self._time

    async def sleep(self, duration: Micros) -> None:
        raise AssertionError("a search does not wait")


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(f"mainspring.stores.{name}", value)


async def many_runs(harness: Harness) -> JobId:
    """Create runs that differ in all that can be filtered by, in an order that scatters each filter's matches."""
    runs: list[NewRun] = []
    failed: list[NewRun] = []
    for number in range(64):
        bits = number * 37 % 64
        about = About(name="Nightly report" if bits & 1 else "", tags=("billing",) if bits & 2 else ())
        run = a_run(
            task="charge" if bits & 4 else "greet",
            queue="billing" if bits & 8 else "default",
            tenant="acme" if bits & 16 else "default",
            about=about if bits & 3 else None,
            policy=a_policy(retries=0),
            delay=DAY if not bits & 32 and bits & 1 else 0,
        )
        (failed if bits & 32 else runs).append(run)
    # They alternate between the states, because ids are in the order of their making.
    held = await harness.start(*failed)
    await harness.fail(*held[::2])
    await harness.fail(*held[1::2], error="another error")
    await harness.submit(*runs)
    job = await harness.put(a_job(a_spec(task="charge", queue="billing", schedule=every(DAY))))
    owner, now = await harness.owner(), await harness.now()
    for number in range(6):
        current = await harness.job(job.id)
        tick = a_tick(current, now - (6 - number) * MINUTE)
        await harness.store.fire(owner, [a_fire(current, tick, next_fire=current.next_fire)])
    return job.id


def all_combinations(base: Wanted, filters: dict[str, object]) -> Iterator[Wanted]:
    names = chain.from_iterable(combinations(filters, size) for size in range(len(filters) + 1))
    for given in names:
        yield msgspec.structs.replace(base, **{name: filters[name] for name in given})


async def walk(
    read: Callable[[Search, str | None], Awaitable[Page[Item]]], clock: Callable[[], Clock]
) -> list[Page[Item]]:
    """All pages of a list."""
    pages = [await read(Search(clock()), None)]
    while (after := pages[-1].after) is not None:
        pages.append(await read(Search(clock()), after))
        assert pages[-1].after is None or pages[-1].after < after, "each page continues further back"
    return pages


def check_full(pages: list[Page[Item]], expected: list[str], wanted: object) -> None:
    assert [item.id for page in pages for item in page.items] == expected, wanted
    assert [len(page.items) for page in pages[:-1]] == [LIMIT] * (len(pages) - 1), wanted


def matches(run: RunView, wanted: RunFilter) -> bool:
    """What a filter means, in words of its own."""
    name, tags = ("", ()) if run.about is None else (run.about.name, run.about.tags)
    return all(
        (
            wanted.tenant in (None, run.tenant),
            run.state in wanted.states if wanted.states else True,
            run.task == wanted.task if wanted.task else True,
            run.queue == wanted.queue if wanted.queue else True,
            wanted.tag in tags if wanted.tag else True,
            run.job_id == wanted.job if wanted.job else True,
            run.job_id is None if wanted.one_off else True,
            wanted.text.lower() in f"{name}\n{run.task}\n{run.id}".lower(),
            made_at(run.id) >= wanted.since if wanted.since is not None else True,
            run.state is RunState.FAILED if wanted.dead else True,
            run.fingerprint == wanted.fingerprint if wanted.fingerprint else True,
        )
    )


async def test_pages_of_runs_are_full_with_every_combination_of_filters(harness: Harness) -> None:
    job = await many_runs(harness)
    everything = (await harness.store.list_runs(RunFilter(tenant=None), None, 12)).items
    while len(everything) < 70:
        everything += (await harness.store.list_runs(RunFilter(tenant=None), everything[-1].id, 12)).items
    by_age = sorted(made_at(run.id) for run in everything)
    filters: dict[str, object] = {
        "tenant": "default",
        "states": frozenset({RunState.FAILED, RunState.QUEUED}),
        "task": "charge",
        "queue": "billing",
        "tag": "billing",
        "one_off": True,
        "text": "night",
        "since": by_age[10] // MILLISECOND * MILLISECOND,
    }
    dead = {name: filters[name] for name in ("tenant", "task", "queue")}
    kind = next(run.fingerprint for run in everything if run.fingerprint)
    combined = [
        *all_combinations(RunFilter(tenant=None), filters),
        *all_combinations(RunFilter(tenant=None, dead=True), {**dead, "fingerprint": kind}),
        *all_combinations(RunFilter(tenant=None, job=job), {**dead, "states": frozenset({RunState.SUCCEEDED})}),
    ]
    found = 0
    for wanted in combined:

        async def read(search: Search, after: str | None, wanted: RunFilter = wanted) -> Page[RunView]:
            return await search.runs(harness.store, wanted, after, LIMIT)

        expected: list[str] = [run.id for run in everything if matches(run, wanted)]
        check_full(await walk(read, StandingClock), expected, wanted)
        found += bool(expected)
    assert found > len(combined) * 3 / 4, "most combinations match a run"


async def test_pages_of_jobs_are_full_with_every_combination_of_filters(harness: Harness) -> None:
    jobs: list[Job] = []
    for number in range(32):
        bits = number * 11 % 32
        spec = a_spec(
            name=f"{'nightly' if bits & 1 else 'daily'} {number}",
            task="charge" if bits & 2 else "greet",
            queue="billing" if bits & 4 else "default",
            tags=("billing",) if bits & 8 else (),
            schedule=every(DAY),
        )
        jobs.append(await harness.put(a_job(spec, tenant="acme" if bits & 16 else "default")))
    paused = [job.id for job in jobs[::3]]
    await harness.store.set_jobs_state(paused, JobState.PAUSED)
    filters: dict[str, object] = {
        "tenant": "default",
        "states": frozenset({JobState.SCHEDULED}),
        "task": "charge",
        "queue": "billing",
        "tag": "billing",
        "text": "NIGHT",
    }
    for wanted in all_combinations(JobFilter(tenant=None), filters):

        async def read(search: Search, after: str | None, wanted: JobFilter = wanted) -> Page[Job]:
            return await search.jobs(harness.store, wanted, after, LIMIT)

        expected: list[str] = [
            job.id
            for job in sorted(jobs, key=lambda job: job.id, reverse=True)
            if wanted.tenant in (None, job.tenant)
            and (not wanted.states or job.id not in paused)
            and wanted.task in ("", job.spec.task)
            and wanted.queue in ("", job.spec.queue)
            and (not wanted.tag or wanted.tag in job.spec.tags)
            and wanted.text.lower() in job.spec.name
        ]
        check_full(await walk(read, StandingClock), expected, wanted)


async def test_a_search_that_ran_out_of_time_continues_at_its_cursor(harness: Harness) -> None:
    await many_runs(harness)
    wanted = RunFilter(tenant="default", task="charge", text="night", queue="billing")

    async def read(search: Search, after: str | None) -> Page[RunView]:
        return await search.runs(harness.store, wanted, after, LIMIT)

    whole = await walk(read, StandingClock)
    pieces = await walk(read, lambda: StandingClock(SEARCH_TIME))
    assert [run.id for page in pieces for run in page.items] == [run.id for page in whole for run in page.items]
    for page in pieces:
        assert page.after is None or all(run.id >= page.after for run in page.items)


async def test_a_run_is_found_behind_many_that_do_not_match(harness: Harness) -> None:
    rare = a_run(queue="billing")
    await harness.submit(rare)
    for _ in range(3):
        await harness.submit(*[a_run() for _ in range(40)])
    page = await Search(StandingClock()).runs(harness.store, RunFilter(tenant="default", queue="billing"), None, LIMIT)
    assert ([run.id for run in page.items], page.after) == ([RunId(rare.id)], None)
