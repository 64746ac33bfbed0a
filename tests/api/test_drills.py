"""Drills over HTTP."""

from typing import cast

import httpx2
import pytest

from mainspring.core.cluster.shards import ShardKeeper
from mainspring.core.model.base.instant import HOUR, MINUTE
from mainspring.core.ports.storage.coordination import Coordinator
from mainspring.core.runtime.local_wakeups import LocalWakeups
from mainspring.testing.virtual_time import VirtualClock
from tests.api.conftest import Service
from tests.support.virtual import in_virtual_time


def coordinator(service: Service) -> Coordinator:
    """Every store is also a coordinator."""
    return cast(Coordinator, service.store)


@in_virtual_time
async def test_a_drill_reports_how_long_shards_were_without_an_owner() -> None:
    service = Service(auth=False, clock=VirtualClock())
    client = service.client()
    keepers = [
        ShardKeeper(coordinator(service), service.store.shards, LocalWakeups(), service.clock, name=name)
        for name in "ab"
    ]
    for keeper in keepers:
        await keeper.start()
    try:
        await service.clock.sleep(MINUTE)
        assert all(keeper.owned() for keeper in keepers)
        answer = await client.post("/v1/drills", json={"scheduler": "a", "watch": "3s"})
        schedulers = (await client.get("/v1/schedulers")).json()["items"]
    finally:
        for keeper in keepers:
            await keeper.stop()
    assert answer.status_code == 200, answer.text
    report = answer.json()
    assert (report["scheduler"], report["schedulers"], report["passed"]) == ("a", 2, True)
    assert 0 < report["secondsWithoutOwner"] < 3
    assert (report["ticks"], report["missed"], report["doubled"]) == (0, 0, 0)
    assert sorted(item["name"] for item in schedulers) == ["a", "b"]
    assert report["schedulerId"] not in {item["schedulerId"] for item in schedulers}


async def test_a_drill_without_schedulers_is_rejected(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/drills")
    assert (answer.status_code, answer.json()["detail"]) == (409, "no scheduler is alive")


async def test_a_drill_in_production_must_be_confirmed(service: Service, client: httpx2.AsyncClient) -> None:
    member = await coordinator(service).join("only", HOUR)
    service.api.production = True
    assert (await client.get("/v1/drills")).json() == {"production": True}
    for body in ({}, {"revoke": False}, {"inProduction": False}):
        answer = await client.post("/v1/drills", json=body)
        assert answer.status_code == 409
        assert "production" in answer.json()["detail"]
    await coordinator(service).renew(member, HOUR)
    # The drill is allowed now, and fails because the scheduler does not exist.
    answer = await client.post("/v1/drills", json={"scheduler": "nobody", "inProduction": True})
    assert answer.status_code == 404


@pytest.mark.parametrize("watch", ["1s", "1h", "soon", -1])
async def test_a_watch_time_out_of_bounds_is_rejected(
    service: Service, client: httpx2.AsyncClient, watch: object
) -> None:
    await coordinator(service).join("only", HOUR)
    answer = await client.post("/v1/drills", json={"watch": watch})
    assert (answer.status_code, answer.json()["field"]) == (400, "watch")
