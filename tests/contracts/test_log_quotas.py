"""Quotas of log bytes per tenant and day."""

import pytest

from mainspring.core.model.access.access import Quotas, Tenant
from mainspring.core.model.base.instant import DAY, HOUR
from mainspring.core.model.runs.run import HeldRun
from mainspring.core.ports.storage.access import Author
from mainspring.core.ports.storage.catalog import LOG_DAY_CUT, LogReport
from tests.support.builders import a_run
from tests.support.store_harness import Harness

pytestmark = pytest.mark.api


async def set_quota(harness: Harness, tenant: str, most: int | None) -> None:
    await harness.store.put_tenant(Tenant(name=tenant, quotas=Quotas(log_bytes_per_day=most)), Author("ada", tenant))


async def append_log(harness: Harness, held: HeldRun, *texts: str) -> None:
    reports = [LogReport(run=held.id, fence=held.fence, text=text) for text in texts]
    assert await harness.store.append_log(reports) == [True] * len(texts)


async def texts(harness: Harness, held: HeldRun) -> list[str]:
    return [line.text for line in await harness.store.log(held.id, 0, 100)]


async def test_a_log_beyond_the_quota_is_truncated_with_a_notice(harness: Harness) -> None:
    await set_quota(harness, "acme", 20)
    one, other = await harness.start(a_run(tenant="acme"), a_run(tenant="acme"))
    await append_log(harness, one, "0123456789")
    await append_log(harness, other, "ä2345678", "12")
    assert await texts(harness, one) == ["0123456789"]
    assert await texts(harness, other) == ["ä2345678", LOG_DAY_CUT]
    # Every run of the tenant gets the notice once.
    await append_log(harness, other, "1", "2")
    await append_log(harness, one, "longer than that")
    await append_log(harness, one, "x")
    assert await texts(harness, other) == ["ä2345678", LOG_DAY_CUT]
    assert await texts(harness, one) == ["0123456789", LOG_DAY_CUT]


async def test_log_quotas_are_counted_per_tenant(harness: Harness) -> None:
    await set_quota(harness, "acme", 5)
    await set_quota(harness, "other", 5)
    for tenant in ("acme", "other", "free"):
        [held] = await harness.start(a_run(tenant=tenant))
        await append_log(harness, held, "12345", "6789")
        assert await texts(harness, held) == ["12345", LOG_DAY_CUT if tenant != "free" else "6789"]


async def test_a_log_quota_is_reset_every_day(harness: Harness) -> None:
    await set_quota(harness, "acme", 10)
    [held] = await harness.start(a_run(tenant="acme"))
    await append_log(harness, held, "0123456789", "more")
    assert await texts(harness, held) == ["0123456789", LOG_DAY_CUT]
    await harness.move_clock(DAY - await harness.now() % DAY + HOUR)
    await harness.store.tidy()
    [held] = await harness.start(a_run(tenant="acme"))
    await append_log(harness, held, "0123456789")
    assert await texts(harness, held) == ["0123456789"]


async def test_a_removed_log_quota_has_no_effect(harness: Harness) -> None:
    await set_quota(harness, "acme", 0)
    [held] = await harness.start(a_run(tenant="acme"))
    await append_log(harness, held, "no")
    assert await texts(harness, held) == [LOG_DAY_CUT]
    await set_quota(harness, "acme", None)
    [held] = await harness.start(a_run(tenant="acme"))
    await append_log(harness, held, "yes")
    assert await texts(harness, held) == ["yes"]


async def test_a_rejected_log_line_does_not_count_in_the_quota(harness: Harness) -> None:
    await set_quota(harness, "acme", 5)
    [held] = await harness.start(a_run(tenant="acme"))
    assert await harness.store.append_log([LogReport(run=held.id, fence=held.fence + 1, text="12345")]) == [False]
    await append_log(harness, held, "12345")
    assert await texts(harness, held) == ["12345"]
