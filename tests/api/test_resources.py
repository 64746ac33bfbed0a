"""Changes of jobs, dead letters, bulk actions, logs, audit, keys and versions, on every store."""

import asyncio
from typing import Any

import httpx2
import msgspec
import pytest

from mainspring.core.model.access.access import Role
from tests.api.conftest import Service
from tests.api.test_jobs import create, later
from tests.api.test_remote import claim, register, submit


async def get(client: httpx2.AsyncClient, path: str, **query: Any) -> Any:
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def post(client: httpx2.AsyncClient, path: str, body: Any = None, status: int = 200) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def fail(client: httpx2.AsyncClient, count: int, *, task: str = "t", error: str = "ValueError: no") -> list[str]:
    """Create dead letters; the ids of their runs."""
    worker = await register(client)
    runs = [await submit(client, task=task) for _ in range(count)]
    for run in await claim(client, worker, limit=count):
        body = {"fence": run["fence"], "error": error, "retry": False}
        await post(client, f"/v1/runs/{run['runId']}/fail", body)
    return runs


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_changing_a_job_keeps_the_other_fields(client: httpx2.AsyncClient, method: str) -> None:
    fields = {"payload": {"a": 1}, "tags": ["x"], "owner": "me", "maxRetries": 7, "timeout": "5m", "queue": "q"}
    for schedule in ({"cronExpression": "0 2 * * *", "name": method}, {"scheduleTime": later(hours=1)}):
        made = await create(client, **schedule, **fields)
        changed = await client.request(method, f"/v1/jobs/{made['jobId']}", json={"priority": 2})
        assert changed.status_code == 200, changed.text
        before = (await get(client, f"/v1/jobs/{made['jobId']}")) | {"priority": 5}
        for moving in ("version", "createdAt", "updatedAt", "warnings", "nextFires"):
            made.pop(moving, None)
            before.pop(moving, None)
        assert before == made
        assert changed.json()["priority"] == 2


async def test_a_purged_job_is_not_found(client: httpx2.AsyncClient) -> None:
    for fields in ({}, {"name": "recurring", "every": "1h"}, {"scheduleTime": later(hours=1)}):
        job = (await create(client, **fields))["jobId"]
        cancelled = await client.delete(f"/v1/jobs/{job}")
        assert (cancelled.status_code, cancelled.json()) == (200, {"jobId": job, "status": "cancelled"})
        assert (await client.delete(f"/v1/jobs/{job}")).status_code == 200, "cancelling twice is not an error"
        assert (await get(client, f"/v1/jobs/{job}"))["status"] == "cancelled"
        assert (await client.delete(f"/v1/jobs/{job}", params={"purge": True})).json()["status"] == "purged"
        assert (await client.get(f"/v1/jobs/{job}")).status_code == 404


async def test_cancelling_a_cancelled_run_succeeds(client: httpx2.AsyncClient) -> None:
    run = (await create(client, task="t"))["jobId"]
    answers = [await client.post(f"/v1/runs/{run}/cancel") for _ in range(2)]
    assert [(answer.status_code, answer.json()["status"]) for answer in answers] == [(200, "cancelled")] * 2


async def test_a_completed_run_cannot_be_cancelled_or_changed(client: httpx2.AsyncClient) -> None:
    [run] = await fail(client, 1)
    assert (await client.delete(f"/v1/jobs/{run}")).status_code == 409
    assert (await client.post(f"/v1/runs/{run}/cancel")).status_code == 409
    assert (await client.patch(f"/v1/jobs/{run}", json={"priority": 1})).status_code == 409


async def test_a_job_can_be_run_now_with_another_payload(client: httpx2.AsyncClient) -> None:
    for fields in ({"payload": 1}, {"payload": 1, "name": "recurring", "every": "1h"}):
        job = (await create(client, **fields))["jobId"]
        as_it_is = await post(client, f"/v1/jobs/{job}/run", status=201)
        other = await post(client, f"/v1/jobs/{job}/run", {"payload": 2}, status=201)
        assert (await get(client, f"/v1/runs/{as_it_is['runId']}"))["payload"] == 1
        assert (await get(client, f"/v1/runs/{other['runId']}"))["payload"] == 2
        assert (await get(client, f"/v1/jobs/{job}"))["payload"] == 1


async def test_dead_letters_are_grouped_replayed_discarded_and_restored(client: httpx2.AsyncClient) -> None:
    first = await fail(client, 3, error="ValueError: no 1")
    second = await fail(client, 1, task="other", error="KeyError: x")
    groups = (await get(client, "/v1/dead-letters"))["items"]
    assert [(group["count"], group["task"]) for group in groups] == [(3, "t"), (1, "other")]
    listed = (await get(client, "/v1/dead-letters/runs", fingerprint=groups[0]["fingerprint"]))["items"]
    assert {run["runId"] for run in listed} == set(first)

    planned = await post(client, "/v1/dead-letters/replay", {"fingerprint": groups[0]["fingerprint"], "dryRun": True})
    assert (planned["count"], planned["dryRun"]) == (3, True)
    assert len((await get(client, "/v1/dead-letters"))["items"]) == 2

    edited = await post(client, "/v1/dead-letters/replay", {"runIds": [first[0]], "payload": {"fixed": True}})
    again = await get(client, f"/v1/runs/{edited['runIds'][0]}")
    assert (again["replayOf"], again["payload"]) == (first[0], {"fixed": True})

    paced = await post(client, "/v1/dead-letters/replay", {"task": "t", "perSecond": 0.01})
    assert paced["count"] == 2
    states = sorted([(await get(client, f"/v1/runs/{run}"))["status"] for run in paced["runIds"]])
    assert states == ["queued", "scheduled"]
    assert (await post(client, "/v1/dead-letters/replay", {"runIds": first}))["count"] == 0

    foreseen = await post(client, "/v1/dead-letters/discard", {"everything": True, "dryRun": True})
    assert (foreseen["count"], foreseen["more"]) == (1, False)
    gone = await post(client, "/v1/dead-letters/discard", {"everything": True, "why": "old"})
    assert gone["count"] == 1
    assert (await get(client, "/v1/dead-letters"))["items"] == []
    back = await post(client, "/v1/dead-letters/bring-back", {"runIds": gone["runIds"]})
    assert (back["action"], back["count"]) == ("bring-back", 1)
    assert len((await get(client, "/v1/dead-letters"))["items"]) == 1
    assert (await post(client, "/v1/dead-letters/discard", {"everything": True}))["count"] == 1
    assert (await get(client, f"/v1/runs/{second[0]}"))["status"] == "failed"


async def test_a_bulk_action_previews_and_then_changes_the_matches(client: httpx2.AsyncClient) -> None:
    jobs = {(await create(client, name=f"job {number}", every="1h", tags=["night"]))["jobId"] for number in range(3)}
    await create(client, name="another", every="1h")
    by_tag = {"tag": "night", "target": "jobs"}
    planned = await post(client, "/v1/bulk", {"action": "pause", "dryRun": True, **by_tag})
    assert (planned["matched"], planned["changed"], set(planned["sample"])) == (3, 0, jobs)
    for action, status in (("pause", "paused"), ("resume", "scheduled")):
        done = await post(client, "/v1/bulk", {"action": action, **by_tag})
        assert (done["matched"], done["changed"]) == (3, 3)
        assert {(await get(client, f"/v1/jobs/{job}"))["status"] for job in jobs} == {status}
    retagged = await post(
        client, "/v1/bulk", {"action": "retag", "addTags": ["day"], "removeTags": ["night"], **by_tag}
    )
    assert retagged["changed"] == 3
    assert {item["jobId"] for item in (await get(client, "/v1/jobs", tag="day"))["items"]} == jobs
    one = {"ids": planned["sample"][:1], "action": "pause"}
    assert (await post(client, "/v1/bulk", one))["changed"] == 1
    assert (await post(client, "/v1/bulk", {**one, "status": "scheduled"}))["matched"] == 0
    assert (await client.post("/v1/bulk", json={**one, "tag": "day"})).json()["field"] == "ids"
    assert (await post(client, "/v1/bulk", {"action": "cancel", "tag": "day"}))["changed"] == 3
    runs = {await submit(client, task="many", tags=["r"]) for _ in range(3)}
    stopped = await post(client, "/v1/bulk", {"action": "cancel", "target": "runs", "task": "many"})
    assert (stopped["changed"], set(stopped["sample"])) == (3, runs)


async def test_a_bulk_retry_replays_each_run_once(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    good, bad = await submit(client, task="once"), await submit(client, task="once", payload={"n": 1}, maxRetries=0)
    for held in await claim(client, worker, limit=2):
        verb, report = ("fail", {"error": "no"}) if held["runId"] == bad else ("complete", {})
        await post(client, f"/v1/runs/{held['runId']}/{verb}", {"fence": held["fence"], **report})
    stopped, waiting = await submit(client, task="once", delay="1h"), await submit(client, task="once", delay="1h")
    await post(client, f"/v1/runs/{stopped}/cancel")
    by_task = {"action": "retry", "target": "runs", "task": "once"}
    planned = await post(client, "/v1/bulk", {**by_task, "dryRun": True})
    assert (planned["changed"], set(planned["sample"])) == (0, {bad, stopped})
    assert len((await get(client, "/v1/runs", task="once"))["items"]) == 4
    named = {"action": "retry", "target": "runs", "ids": [good, bad, stopped, waiting]}
    done = await post(client, "/v1/bulk", named)
    assert (done["matched"], done["changed"], done["more"]) == (3, 3, False)
    made = {run["replayOf"]: run for run in (await get(client, "/v1/runs", task="once"))["items"] if "replayOf" in run}
    assert made.keys() == {good, bad, stopped}
    assert (await get(client, f"/v1/runs/{made[bad]['runId']}"))["payload"] == {"n": 1}
    assert (await get(client, "/v1/dead-letters"))["items"] == []
    again = await post(client, "/v1/bulk", named)
    assert (again["matched"], again["changed"]) == (3, 0)
    for wrong, field in (({"status": "running"}, "status"), ({"target": "jobs"}, "action")):
        refused = await client.post("/v1/bulk", json={**by_task, **wrong})
        assert (refused.status_code, refused.json()["field"]) == (400, field)


async def test_queues_and_workers_show_their_load(client: httpx2.AsyncClient) -> None:
    worker = await register(client, "mail")
    await submit(client, queue="mail")
    await submit(client, queue="mail")
    await claim(client, worker)
    await post(client, "/v1/queues/mail/pause", {"why": "deploy"})
    [queue] = (await get(client, "/v1/queues"))["items"]
    assert (queue["name"], queue["queued"], queue["running"], queue["workers"]) == ("mail", 1, 1, 1)
    assert (queue["paused"], queue["pauseReason"]) == (True, "deploy")
    [shown] = (await get(client, "/v1/workers"))["items"]
    assert (shown["workerId"], shown["running"], shown["queues"]) == (worker, 1, ["mail"])
    assert (await post(client, f"/v1/workers/{worker}/drain", status=202))["draining"]
    assert (await post(client, f"/v1/workers/{worker}/heartbeat", {"held": [], "claim": 0}))["draining"]
    stats = await get(client, "/v1/stats", step="5m")
    assert (stats["queued"], stats["running"]) == (1, 1)
    assert (await get(client, "/v1/schedulers"))["items"] == []


async def test_a_log_is_read_by_range_and_followed_to_its_end(client: httpx2.AsyncClient) -> None:
    worker = await register(client)
    run = await submit(client)
    [held] = await claim(client, worker)
    for text in ("one", "two", "three"):
        await post(client, f"/v1/runs/{run}/log", {"fence": held["fence"], "text": text})
    first = await get(client, f"/v1/runs/{run}/logs", limit=2)
    assert ([line["text"] for line in first["items"]], first.get("ended", False)) == (["one", "two"], False)
    rest = await get(client, f"/v1/runs/{run}/logs", after=first["nextAfter"])
    assert [line["text"] for line in rest["items"]] == ["three"]
    assert (await get(client, f"/v1/jobs/{run}/logs"))["runId"] == run
    await post(client, f"/v1/runs/{run}/complete", {"fence": held["fence"]})
    followed = await client.get(f"/v1/runs/{run}/logs/follow", headers={"last-event-id": str(first["nextAfter"])})
    assert followed.headers["content-type"].startswith("text/event-stream")
    events = [line for line in followed.text.splitlines() if line.startswith("event: ")]
    assert events == ["event: line", "event: end"]
    assert '"three"' in followed.text


async def test_a_run_explains_why_it_waits(client: httpx2.AsyncClient) -> None:
    ahead, run = await submit(client), await submit(client)
    why = await get(client, f"/v1/runs/{run}/explain")
    assert (why["status"], why["position"]) == ("queued", 1)
    assert any("no live worker" in reason for reason in why["reasons"]), why
    future = (await create(client, scheduleTime=later(hours=1)))["jobId"]
    assert "due" in (await get(client, f"/v1/runs/{future}/explain"))["reasons"][0]
    await client.delete(f"/v1/jobs/{ahead}")
    assert (await get(client, f"/v1/runs/{ahead}/explain"))["status"] == "cancelled"


async def test_every_change_is_audited_with_the_values_before_and_after(guarded: Service) -> None:
    text = await guarded.key(Role.ADMIN, "a")
    async with guarded.client(text) as client:
        job = (await create(client, name="audited", every="1h"))["jobId"]
        await client.patch(f"/v1/jobs/{job}", json={"every": "2h", "why": "too often"})
        await post(client, f"/v1/jobs/{job}/pause")
        await post(client, "/v1/jobs/batch", {"jobs": [{"task": "t"}] * 5})
        key = (await post(client, "/v1/keys", {"name": "k", "role": "viewer"}, status=201))["keyId"]
        await client.delete(f"/v1/keys/{key}")
        author = f"key:{text.split('_')[1]}"
        entries = (await get(client, "/v1/audit", author=author))["items"]
        assert [entry["action"] for entry in entries][:2] == ["keys.revoke", "keys.put"]
        assert [entry["action"] for entry in entries if entry["count"] == 5] == ["jobs.submit"]
        of_job = (await get(client, "/v1/audit", target=job))["items"]
        assert len(of_job) == 3
        assert {entry["author"] for entry in of_job} == {author}
        [changed] = [entry for entry in of_job if entry.get("why") == "too often"]
        assert changed["before"] != changed["after"]
        first = await get(client, "/v1/audit", limit=2)
        second = await get(client, "/v1/audit", limit=2, cursor=first["nextCursor"])
        assert [entry["position"] for entry in first["items"] + second["items"]] == [
            entry["position"] for entry in entries[:4]
        ]


async def test_a_key_works_until_it_is_revoked(guarded: Service) -> None:
    async with guarded.client(await guarded.key(Role.ADMIN, None)) as admin:
        await admin.put("/v1/tenants", json={"name": "acme", "quotas": {"payloadBytes": 10}})
        made = await post(admin, "/v1/keys", {"name": "shop", "role": "submitter", "tenant": "acme"}, status=201)
        async with guarded.client(made["key"]) as shop:
            assert (await create(shop, payload=1))["tenant"] == "acme"
            assert (await shop.post("/v1/jobs", json={"task": "t", "payload": "x" * 20})).status_code == 400
            assert (await shop.get("/v1/keys")).status_code == 403
            assert made["key"] not in (await admin.get("/v1/keys")).text
            await admin.delete(f"/v1/keys/{made['keyId']}")
            assert (await shop.get("/v1/jobs")).status_code == 401
        assert {tenant["name"] for tenant in (await get(admin, "/v1/tenants"))["items"]} >= {"acme"}


async def test_concurrent_submits_of_one_key_make_one_job(client: httpx2.AsyncClient) -> None:
    body = {"task": "t", "payload": [1], "idempotencyKey": "once"}
    answers = await asyncio.gather(*(client.post("/v1/jobs", json=body) for _ in range(32)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["jobId"] for answer in answers}) == 1
    assert len((await get(client, "/v1/jobs"))["items"]) == 1


async def test_versions_show_their_author_and_changes_and_can_be_restored(guarded: Service) -> None:
    text = await guarded.key(Role.OPERATOR, "a")
    async with guarded.client(text) as client:
        job = (await create(client, name="v", every="1h", payload={"a": 1}))["jobId"]
        await client.patch(f"/v1/jobs/{job}", json={"payload": {"a": 2}, "tags": ["x"]})
        newest, oldest = (await get(client, f"/v1/jobs/{job}/versions"))["items"]
        assert newest["changes"]["payload"] == {"before": {"a": 1}, "after": {"a": 2}}
        assert newest["changes"]["tags"]["after"] == ["x"]
        assert newest["madeBy"] == oldest["madeBy"] == f"key:{text.split('_')[1]}"
        restored = await post(client, f"/v1/jobs/{job}/versions/1/restore")
        assert (restored["version"], restored["payload"]) == (3, {"a": 1})
        assert (await client.post(f"/v1/jobs/{job}/versions/9/restore")).status_code == 404


async def test_health_checks_need_no_key(guarded: Service) -> None:
    async with guarded.client() as anonymous:
        for path in ("/healthz", "/readyz"):
            assert msgspec.json.decode((await anonymous.get(path)).content)["status"] == "ok"
