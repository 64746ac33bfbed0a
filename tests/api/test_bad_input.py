"""Invalid input is rejected with the name of the field and a reason: never a 500, never an error of the store."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from mainspring.config.resources import RESOURCES
from mainspring.core.model.access.access import Role
from mainspring.core.model.base.errors import Invalid
from mainspring.http.operation import Empty, Operation
from tests.api.conftest import Service, memory_only

MISSING = "019a8c4b6f2c70008042b1c2d3e4f506"
JSON = {"content-type": "application/json"}
DEEP = b"[" * 100_000 + b"]" * 100_000
NUL = "a\x00b"


def refused(answer: httpx2.Response, field: str, *words: str) -> None:
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["field"] == field, problem
    for word in words:
        assert word in f"{problem['detail']} {problem.get('hint', '')}", problem


@memory_only
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/jobs", b'{"task":"t","payload":%b}'),
        ("/v1/jobs", b'{"task":"t","unknown":%b}'),
        ("/v1/jobs", b'{"task":"t","tags":%b}'),
        ("/v1/jobs", b'{"payload":{"script":"x","params":%b}}'),
        ("/v1/jobs", b'{"task":"t","payload":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}"),
        ("/v1/jobs/batch", b'{"jobs":%b}'),
        ("/v1/jobs/batch", b'{"jobs":[{"task":"t","payload":%b}]}'),
        (f"/v1/jobs/{MISSING}/run", b'{"payload":%b}'),
        (f"/v1/runs/{MISSING}/retry", b'{"payload":%b}'),
        (f"/v1/runs/{MISSING}/complete", b'{"fence":1,"result":%b}'),
        ("/v1/dead-letters/replay", b'{"runIds":["x"],"payload":%b}'),
    ],
)
async def test_deeply_nested_json_is_rejected(client: httpx2.AsyncClient, path: str, body: bytes) -> None:
    content = body % DEEP if b"%b" in body else body
    answer = await client.post(path, content=content, headers=JSON)
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        *(("/v1/jobs", {name: NUL}, name) for name in ("task", "name", "owner", "queue", "tenant", "orderingKey")),
        ("/v1/jobs", {"tags": [NUL]}, "tags[0]"),
        ("/v1/jobs", {"idempotencyKey": NUL}, "idempotencyKey"),
        ("/v1/jobs", {"name": "n", "cronExpression": NUL}, "cronExpression"),
        ("/v1/jobs", {"name": "n", "cronExpression": "* * * * *", "timezone": NUL}, "timezone"),
        ("/v1/queues/q/pause", {"why": NUL}, "why"),
        ("/v1/workers/register", {"name": NUL, "queues": ["q"]}, "name"),
        ("/v1/workers/register", {"name": "w", "queues": ["q"], "version": NUL}, "version"),
        ("/v1/workers/register", {"name": "w", "queues": ["q"], "tasks": [NUL]}, "tasks[0]"),
        ("/v1/keys", {"name": NUL, "role": "viewer"}, "name"),
        ("/v1/bulk", {"action": "retag", "task": "t", "addTags": [NUL]}, "addTags[0]"),
        ("/v1/dead-letters/discard", {"everything": True, "why": NUL}, "why"),
    ],
)
async def test_nul_characters_are_rejected(
    client: httpx2.AsyncClient, path: str, body: dict[str, Any], field: str
) -> None:
    """PostgreSQL cannot store them, so they are rejected for every store."""
    refused(await client.post(path, json={"task": "t", **body} if path == "/v1/jobs" else body), field)


@pytest.mark.parametrize("name", ["task", "queue", "tag", "tenant"])
async def test_nul_characters_in_a_query(client: httpx2.AsyncClient, name: str) -> None:
    for path in ("/v1/jobs", "/v1/runs"):
        refused(await client.get(path, params={name: "\x00"}), name)
    assert (await client.get("/v1/jobs", params={"text": "\x00"})).json()["items"] == []


async def test_a_payload_may_contain_any_json(client: httpx2.AsyncClient) -> None:
    payload = {"nul": "\x00", "unicode": "😀\u2028", "number": 123456789012345678901234567890}
    job = (await client.post("/v1/jobs", json={"task": "t", "payload": payload})).json()["jobId"]
    assert (await client.get(f"/v1/jobs/{job}")).json()["payload"] == payload


@memory_only
@pytest.mark.parametrize(
    "body",
    [
        b'{"task":"t","payload":"\xff"}',
        b'{"task":"\xff"}',
        b'{"task":"t","payload":"\xed\xa0\x80"}',
        b'{"task":"t","payload":"\\ud800"}',
        b'{"task":"\\ud800"}',
        b'{"task":"t","payload":NaN}',
        b'{"task":"t","payload":{}',
        b"[]",
        b"",
        b"null",
    ],
)
async def test_a_body_that_is_not_strict_json_is_rejected(client: httpx2.AsyncClient, body: bytes) -> None:
    refused(await client.post("/v1/jobs", content=body, headers=JSON), "body")


@memory_only
@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"task":"a","task":"b"}', "task"),
        (b'{"task" : "a", "payload":{"a":1,"b":":"}, "t\\u0061sk" :"b"}', "task"),
        (b'{"type":"a","type":"a"}', "type"),
        (b'{"task":"t","payload":{"a":{"b":1}},"payload":1}', "payload"),
        (
            b'{"task":"t","payload":1,"scheduleTime":"2099-01-01T00:00:00Z","requires":{"gpu":"a"},"payload":2}',
            "payload",
        ),
        (b'{"task":"t","payload":' + b"9" * 5_000 + b',"queue":"a","queue":"a"}', "queue"),
        (b'{"task":"t","retry":{"maxRetries":1,"maxRetries":2}}', "retry.maxRetries"),
        (b'{"type":"t","retry":{"max_retries":1,"max_retries":2}}', "retry.max_retries"),
        (b'{"task":"t","limits":[{"key":"a","most":1},{"key":"b","most":1,"most":2}]}', "limits[1].most"),
        (b'{"task":"t","requires":{"gpu":"a","gpu":"b"}}', "requires.gpu"),
    ],
)
async def test_a_field_that_is_given_twice_is_rejected(client: httpx2.AsyncClient, body: bytes, field: str) -> None:
    refused(await client.post("/v1/jobs", content=body, headers=JSON), field, "is given twice", "keep one of them")


@memory_only
async def test_a_field_that_an_item_of_a_batch_has_twice_is_rejected(client: httpx2.AsyncClient) -> None:
    jobs = b'{"jobs":[{"task":"a"},{"task":"a","task":"b"},{"task":"a","payload":{"x":1,"x":2}}]}'
    answer = await client.post("/v1/jobs/batch", content=jobs, headers=JSON)
    first, second, third = answer.json()["items"]
    assert ("jobId" in first, "jobId" in third) == (True, True)
    assert (second["problem"]["field"], second["problem"]["status"]) == ("task", 400)
    assert "is given twice" in second["problem"]["detail"]
    twice = b'{"jobs":[{"task":"a"}],"jobs":[{"task":"b"}]}'
    refused(await client.post("/v1/jobs/batch", content=twice, headers=JSON), "jobs", "is given twice")


OPERATIONS = [operation for resource in RESOURCES for operation in resource.operations if operation.body is not Empty]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_no_operation_takes_a_field_twice(operation: Operation) -> None:
    for field in operation.body.__struct_encode_fields__:
        with pytest.raises(Invalid, match=f"^{field}: is given twice"):
            operation.read_body(f'{{"{field}":null,"{field}":null}}'.encode(), {})


@memory_only
@pytest.mark.parametrize(
    "body",
    [
        b'{"task":"a:b","queue":"c::d","payload":{"task":":","a":{"task":1,"task":2}}}',
        b'{"type":"t","scheduleTime":"2099-01-01T00:00:00Z","requires":{"a":"b:c"},"tags":["x:y","task:z"]}',
        b' { "task" : "t" , "payload" : "\\":" } ',
    ],
)
async def test_colons_and_repeated_keys_inside_values_are_no_repeated_field(
    client: httpx2.AsyncClient, body: bytes
) -> None:
    answer = await client.post("/v1/jobs", content=body, headers=JSON)
    assert answer.status_code == 201, answer.text


@memory_only
@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"priority": 2**70}, "priority", "at most 10"),
        ({"maxRetries": 10**18}, "maxRetries", "at most"),
        ({"delay": 1e308}, "delay", "at most"),
        ({"delay": "999999999999w"}, "delay", "100 years"),
        ({"delay": "soon"}, "delay", '"30s"'),
        ({"timeout": "0s"}, "timeout", ""),
        ({"scheduleTime": "2026-02-30T00:00:00Z"}, "scheduleTime", "is not a time"),
        ({"scheduleTime": "2026-12-24T00:00:00"}, "scheduleTime", "zone"),
        ({"name": "x" * 201}, "name", "at most 200"),
        ({"tags": [str(number) for number in range(21)]}, "tags", "at most 20"),
        ({"payload": "x" * 300_000}, "payload", "at most 262144"),
        ({"name": "c", "cronExpression": "61 * * * *"}, "cronExpression", "minute: 61 is out of range 0 to 59"),
        ({"name": "c", "cronExpression": "0 25 * * *"}, "cronExpression", "hour: 25 is out of range 0 to 23"),
        ({"name": "c", "cronExpression": "* * * * FOO"}, "cronExpression", "day of week: 'FOO'"),
        ({"name": "c", "cronExpression": "* *"}, "cronExpression", "has 2 fields 5, or 6 with seconds first"),
        ({"name": "c", "cronExpression": "@never"}, "cronExpression", "@hourly"),
        ({"name": "c", "cronExpression": "5-1 * * * *"}, "cronExpression", "write 5-59,0-1"),
        (
            {"name": "c", "cronExpression": "* * * * *", "timezone": "Europe/Pariss"},
            "timezone",
            "did you mean Europe/Paris",
        ),
        ({"name": "c", "cronExpression": "* * * * *", "timezone": "../../etc/passwd"}, "timezone", "Europe/Paris"),
        ({"scheduleType": "weekly"}, "scheduleType", "weekly"),
        ({"retry": {"backof": "fixed"}}, "retry.backof", "no field"),
    ],
)
async def test_an_invalid_field_is_named_with_a_reason(
    client: httpx2.AsyncClient, body: dict[str, Any], field: str, words: str
) -> None:
    answer = await client.post("/v1/jobs", json={"task": "t", **body})
    refused(answer, field)
    problem = answer.json()
    assert words in f"{problem['detail']} {problem.get('hint', '')}", problem


@memory_only
async def test_a_schedule_time_in_the_past_is_rejected_with_its_age(client: httpx2.AsyncClient) -> None:
    when = (datetime.now(UTC) - timedelta(hours=2)).isoformat().replace("+00:00", "Z")
    refused(
        await client.post("/v1/jobs", json={"task": "t", "scheduleTime": when}), "scheduleTime", "2h", "in the past"
    )


@memory_only
async def test_a_batch_that_is_empty_or_too_large_is_rejected(client: httpx2.AsyncClient) -> None:
    refused(await client.post("/v1/jobs/batch", json={"jobs": [{"task": "t"}] * 10_001}), "jobs", "at most 10000")
    refused(await client.post("/v1/jobs/batch", json={"jobs": []}), "jobs")


@memory_only
async def test_a_body_that_is_too_large_is_rejected(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/jobs", content=b" " * 600_000, headers=JSON)
    assert answer.status_code == 413


@memory_only
@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "zstd", "gzip, gzip"])
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/batch", f"/v1/runs/{MISSING}/complete"])
async def test_compressed_bodies_are_rejected(client: httpx2.AsyncClient, path: str, encoding: str) -> None:
    answer = await client.post(path, content=b"x", headers={**JSON, "content-encoding": encoding})
    assert answer.status_code == 415


@pytest.mark.parametrize(
    "identifier", ["x", "²", "%00", "%ff", "0", "-1", "9" * 40, "../jobs", "019A8C4B6F2C70008042B1C2D3E4F506"]
)
async def test_malformed_ids_are_not_found(client: httpx2.AsyncClient, identifier: str) -> None:
    missing = await client.get(f"/v1/jobs/{MISSING}")
    for method, path in (
        ("GET", "/v1/jobs/{}"),
        ("GET", "/v1/jobs/{}/status"),
        ("DELETE", "/v1/jobs/{}"),
        ("GET", "/v1/runs/{}"),
        ("POST", "/v1/runs/{}/cancel"),
        ("POST", "/v1/workers/{}/claim"),
        ("POST", "/v1/workers/{}/leave"),
        ("POST", "/v1/workers/{}/drain"),
        ("DELETE", "/v1/keys/{}"),
    ):
        answer = await client.request(method, path.format(identifier.replace("/", "%2F")))
        if "/" in identifier:
            # The server decodes the slash: no operation has such a path.
            assert (answer.status_code, answer.json()["title"]) == (404, "Unknown path"), (method, path)
            continue
        assert (answer.status_code, answer.content) == (404, missing.content), (method, path)


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("GET", "/v1/runs?jobId=abc", None, "jobId"),
        ("GET", "/v1/jobs?cursor=abc", None, "cursor"),
        ("GET", "/v1/jobs?limit=0", None, "limit"),
        ("GET", "/v1/jobs?limit=1&limit=2", None, "limit"),
        ("GET", "/v1/jobs?limit=", None, "limit"),
        ("GET", "/v1/jobs?status=lost", None, "status"),
        ("GET", "/v1/jobs?colour=red", None, "colour"),
        ("GET", "/v1/audit?cursor=x", None, "cursor"),
        ("GET", "/v1/stats?since=0001-01-01T00:00:00Z", None, "since"),
        ("POST", "/v1/bulk", {"action": "cancel", "target": "runs", "jobId": "abc"}, "jobId"),
        ("POST", "/v1/bulk", {"action": "cancel", "target": "runs"}, "everything"),
        ("POST", "/v1/bulk", {"action": "retag", "everything": True}, "addTags"),
        ("POST", "/v1/dead-letters/replay", {"runIds": ["abc"]}, "runIds"),
        ("POST", "/v1/dead-letters/replay", {}, "fingerprint"),
        ("POST", "/v1/dead-letters/replay", {"everything": True, "payload": 1}, "payload"),
    ],
)
async def test_an_invalid_parameter_is_named(
    client: httpx2.AsyncClient, method: str, path: str, body: Any, field: str
) -> None:
    refused(await client.request(method, path, json=body), field)


@memory_only
async def test_an_unknown_path_or_method_returns_a_problem_document(client: httpx2.AsyncClient) -> None:
    for path in ("/", "/v1", "/v2/jobs", "/v1/jobs/"):
        answer = await client.get(path)
        assert answer.status_code in (200, 404), path
        if answer.status_code == 404:
            assert answer.headers["content-type"] == "application/problem+json"
    wrong = await client.put("/v1/jobs")
    assert wrong.status_code == 405
    assert set(wrong.headers["allow"].replace(" ", "").split(",")) >= {"GET", "POST"}


@memory_only
@pytest.mark.parametrize(
    "chunks", [b"zz\r\nabc\r\n", b"5\r\nabc\r\n0\r\n\r\n", b"F" * 18 + b"\r\nabc", b"-1\r\n", b"5\r\nab"]
)
async def test_a_malformed_chunked_body_is_a_bad_request(served: tuple[Service, str], chunks: bytes) -> None:
    service, url = served
    key = await service.key(Role.ADMIN, None)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head.encode() + chunks)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(10_000), 60)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"the body is incomplete" in answer
