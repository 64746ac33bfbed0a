"""What a tenant may print in a day."""

import pytest

from mainspring.domain.access import Quotas, Tenant
from mainspring.domain.instant import DAY, HOUR
from mainspring.domain.run import HeldRun
from mainspring.ports.access import Author
from mainspring.ports.catalog import LOG_DAY_CUT, LogReport
from tests.support.builders import a_run
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api


async def limit(harness: Harness, tenant: str, most: int | None) -> None:
    await harness.store.put_tenant(Tenant(name=tenant, quotas=Quotas(log_bytes_per_day=most)), Author("ada", tenant))


async def say(harness: Harness, held: HeldRun, *texts: str) -> None:
    reports = [LogReport(run=held.id, fence=held.fence, text=text) for text in texts]
    assert await harness.store.append_log(reports) == [True] * len(texts)


async def texts(harness: Harness, held: HeldRun) -> list[str]:
    return [line.text for line in await harness.store.log(held.id, 0, 100)]


async def test_what_is_beyond_is_cut_and_a_line_says_so(harness: Harness) -> None:
    await limit(harness, "acme", 20)
    one, other = await harness.start(a_run(tenant="acme"), a_run(tenant="acme"))
    await say(harness, one, "0123456789")
    await say(harness, other, "ä2345678", "12")
    assert await texts(harness, one) == ["0123456789"]
    assert await texts(harness, other) == ["ä2345678", LOG_DAY_CUT]
    # Each of its runs is cut once.
    await say(harness, other, "1", "2")
    await say(harness, one, "longer than that")
    await say(harness, one, "x")
    assert await texts(harness, other) == ["ä2345678", LOG_DAY_CUT]
    assert await texts(harness, one) == ["0123456789", LOG_DAY_CUT]


async def test_other_tenants_have_their_own(harness: Harness) -> None:
    await limit(harness, "acme", 5)
    await limit(harness, "other", 5)
    for tenant in ("acme", "other", "free"):
        [held] = await harness.start(a_run(tenant=tenant))
        await say(harness, held, "12345", "6789")
        assert await texts(harness, held) == ["12345", LOG_DAY_CUT if tenant != "free" else "6789"]


async def test_the_next_day_begins_anew(harness: Harness) -> None:
    await limit(harness, "acme", 10)
    [held] = await harness.start(a_run(tenant="acme"))
    await say(harness, held, "0123456789", "more")
    assert await texts(harness, held) == ["0123456789", LOG_DAY_CUT]
    # To the first hour of the next day.
    await harness.move_clock(DAY - await harness.now() % DAY + HOUR)
    await harness.store.tidy()
    [held] = await harness.start(a_run(tenant="acme"))
    await say(harness, held, "0123456789")
    assert await texts(harness, held) == ["0123456789"]


async def test_a_quota_that_is_taken_back_holds_no_more(harness: Harness) -> None:
    await limit(harness, "acme", 0)
    [held] = await harness.start(a_run(tenant="acme"))
    await say(harness, held, "no")
    assert await texts(harness, held) == [LOG_DAY_CUT]
    await limit(harness, "acme", None)
    [held] = await harness.start(a_run(tenant="acme"))
    await say(harness, held, "yes")
    assert await texts(harness, held) == ["yes"]


async def test_what_is_not_heard_counts_for_nothing(harness: Harness) -> None:
    await limit(harness, "acme", 5)
    [held] = await harness.start(a_run(tenant="acme"))
    assert await harness.store.append_log([LogReport(run=held.id, fence=held.fence + 1, text="12345")]) == [False]
    await say(harness, held, "12345")
    assert await texts(harness, held) == ["12345"]
