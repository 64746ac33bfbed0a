"""Clock offsets of workers and schedulers, in lists and in metrics."""

from typing import cast

import httpx2

from mainspring.core.model.base.instant import HOUR, MILLISECOND, MINUTE
from mainspring.core.model.cluster.clock_guard import ClockReading
from mainspring.core.ports.storage.clocks import Clocks
from mainspring.core.ports.storage.coordination import Coordinator
from tests.api.conftest import Service
from tests.support.builders import a_worker


async def test_measured_clock_offsets_are_shown_for_workers_and_schedulers(
    service: Service, client: httpx2.AsyncClient
) -> None:
    store = service.store
    worker = await store.open_session(a_worker(name="right", ttl=MINUTE))
    silent = await store.open_session(a_worker(name="silent", ttl=MINUTE))
    scheduler = await cast(Coordinator, store).join("wrong", MINUTE)
    await cast(Clocks, store).record_clock([worker], ClockReading(12 * MILLISECOND, 2 * MILLISECOND), "2026f")
    await cast(Clocks, store).record_clock([scheduler], ClockReading(-HOUR, MILLISECOND), "2026f")
    workers = {item["workerId"]: item for item in (await client.get("/v1/workers")).json()["items"]}
    assert (workers[str(worker)]["clockOffsetMs"], workers[str(worker)]["clockErrorMs"]) == (12.0, 2.0)
    assert "clockOffsetMs" not in workers[str(silent)]
    [seen] = (await client.get("/v1/schedulers")).json()["items"]
    assert (seen["clockOffsetMs"], seen["tzdata"]) == (-3_600_000.0, "2026f")
    metrics = (await client.get("/metrics")).text
    assert 'mainspring_clock_offset_seconds{kind="worker"} 0.012' in metrics
    assert 'mainspring_clock_offset_seconds{kind="scheduler"} -3600.0' in metrics
    assert "mainspring_replica_lag_seconds -1.0" in metrics
