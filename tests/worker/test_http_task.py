"""The task ``http``, run by a worker: its requests, results and failures."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.ids import JobId
from mainspring.core.model.base.instant import SECOND, parse_instant
from mainspring.core.model.runs.names import MAX_RESULT
from mainspring.core.model.runs.new_run import JobRef
from mainspring.core.model.runs.run import RunState
from mainspring.core.model.runs.view import RunView
from mainspring.core.ports.egress import Answer, NoAnswer, OutgoingRequest
from mainspring.core.worker.builtin.tasks import BuiltinTasks
from tests.support.builders import a_policy, a_run, an_id
from tests.support.virtual import in_virtual_time
from tests.support.worker_kit import Tasks, running_worker

URL = "https://hooks.example/a?token=secret"


class FakeEgress:
    """Gives the prepared answers in order, and records the requests."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self._answers = list(answers)
        self.sent: list[OutgoingRequest] = []

    async def send(self, request: OutgoingRequest) -> Answer:
        self.sent.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def answered(status: int = 200, body: bytes = b"done", **headers: str) -> Answer:
    return Answer(status=status, headers={name.replace("_", "-"): value for name, value in headers.items()}, body=body)


@asynccontextmanager
async def a_worker(egress: FakeEgress) -> AsyncIterator[Callable[..., Awaitable[RunView]]]:
    """A function that runs a call of the task until it succeeds, fails or is to be retried."""
    async with running_worker(Tasks(BuiltinTasks().handlers(lambda: egress))) as bench:

        async def run(retries: int = 0, job: JobRef | None = None, **payload: object) -> RunView:
            policy = a_policy(retries=retries, pause=SECOND)
            run = a_run(task="http", payload=msgspec.json.encode(payload), policy=policy, job=job)
            (run_id,) = await bench.submit(run)
            return await bench.until(run_id, RunState.SCHEDULED, RunState.SUCCEEDED, RunState.FAILED)

        yield run


@in_virtual_time
async def test_a_body_is_posted_as_json_with_headers_that_identify_the_run() -> None:
    egress = FakeEgress(answered(201, b'{"ok":true}', content_type="application/json", set_cookie="x"))
    async with a_worker(egress) as run:
        view = await run(url=URL, body={"n": 1}, headers={"Authorization": "Bearer x"}, timeout="5s")
    assert view.state is RunState.SUCCEEDED
    assert view.result is not None
    assert msgspec.json.decode(view.result) == {
        "status": 201,
        "headers": {"content-type": "application/json"},
        "body": '{"ok":true}',
    }
    (sent,) = egress.sent
    assert (sent.method, sent.url, sent.body, sent.timeout) == ("POST", URL, b'{"n":1}', 5 * SECOND)
    assert sent.headers == {
        "Authorization": "Bearer x",
        "Content-Type": "application/json",
        "User-Agent": "mainspring",
        "Idempotency-Key": view.id,
        "X-Mainspring-Run": view.id,
        "X-Mainspring-Attempt": "1",
        "X-Mainspring-Fence": str(view.fence),
    }


@in_virtual_time
async def test_the_call_of_a_tick_has_a_header_with_its_time() -> None:
    egress = FakeEgress(answered())
    tick = JobRef(id=JobId(an_id()), version=1, kind="backfill", scheduled_at=parse_instant("2026-01-02T02:00:00Z"))
    async with a_worker(egress) as run:
        await run(url=URL, job=tick)
    assert egress.sent[0].headers["X-Mainspring-Tick"] == "2026-01-02T02:00:00Z"


@in_virtual_time
async def test_the_default_method_is_get_and_a_text_body_is_sent_unchanged() -> None:
    egress = FakeEgress(answered(), answered())
    async with a_worker(egress) as run:
        await run(url=URL)
        await run(url=URL, method="PUT", body="a=1&b=2", headers={"content-type": "application/x-www-form-urlencoded"})
    first, second = egress.sent
    assert (first.method, first.body, "Content-Type" in first.headers) == ("GET", None, False)
    assert (second.method, second.body) == ("PUT", b"a=1&b=2")
    assert "Content-Type" not in second.headers


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (500, "was answered with 500 Internal Server Error"),
        (404, "404 Not Found; it is not tried again"),
        (429, "429 Too Many Requests"),
        (302, "302 Found; redirects are not followed"),
    ],
)
@in_virtual_time
async def test_an_unexpected_status_fails_the_run_with_the_start_of_the_body(status: int, words: str) -> None:
    async with a_worker(FakeEgress(answered(status, b"because\n" + b"y" * 100_000))) as run:
        view = await run(url=URL)
    assert view.state is RunState.FAILED
    assert view.error is not None
    first, *_, last = view.error.splitlines()
    assert first == "because"
    assert last.startswith("HttpFailed: GET https://hooks.example/a was answered with ")
    assert last.endswith(words)
    assert len(view.error) < 5_000
    assert "secret" not in view.error, "a query may hold one"


@in_virtual_time
async def test_a_failed_call_is_retried_by_the_policy() -> None:
    egress = FakeEgress(answered(503))
    async with a_worker(egress) as run:
        view = await run(retries=3, url=URL)
    assert (view.state, view.attempt) == (RunState.SCHEDULED, 1)


@in_virtual_time
async def test_expected_statuses_replace_the_defaults() -> None:
    async with a_worker(FakeEgress(answered(404), answered(200))) as run:
        assert (await run(url=URL, expectStatus=[404])).state is RunState.SUCCEEDED
        assert (await run(url=URL, expectStatus=[404])).state is RunState.FAILED


@pytest.mark.parametrize("body", [b"x" * 500_000, b"\x00\x01" * 100_000, "€".encode() * 100_000, b"\xff" * 500_000])
@in_virtual_time
async def test_a_long_answer_is_truncated_to_the_result_limit(body: bytes) -> None:
    async with a_worker(FakeEgress(answered(200, body))) as run:
        view = await run(url=URL)
    assert view.state is RunState.SUCCEEDED
    assert view.result is not None
    assert MAX_RESULT - 1_000 < len(view.result) <= MAX_RESULT
    assert msgspec.json.decode(view.result)["truncated"] is True
    assert b"\\u0000" not in view.result


@in_virtual_time
async def test_a_missing_answer_and_a_refused_address_are_errors_of_one_line() -> None:
    egress = FakeEgress(NoAnswer("no complete answer within 1 s"), Invalid("url", "leads inwards"))
    async with a_worker(egress) as run:
        assert (await run(url=URL)).error == "HttpFailed: no complete answer within 1 s"
        assert (await run(url=URL)).error == "HttpFailed: url: leads inwards"


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, r"payload\.url: is missing"),
        ({"url": "ftp://x"}, r"payload\.url: is not HTTP"),
        ({"url": "http://a:b@example.org/"}, r"payload\.url: holds credentials"),
        ({"url": "http:///x"}, r"payload\.url: names no host"),
        ({"url": "http://[::1"}, r"payload\.url: cannot be read"),
        ({"url": URL, "headers": {"Host": "x"}}, r"payload\.headers: Host is not yours to set"),
        ({"url": URL, "headers": {"X-A": "a\r\nX-B: b"}}, r"payload\.headers: the value of X-A holds"),
        ({"url": URL, "headers": {"a b": "x"}}, r"payload\.headers: 'a b' is not a name"),
        ({"url": URL, "methods": "GET"}, r"payload\.methods: is no field of this"),
        ({"url": URL, "method": "TRACE"}, "'TRACE' is not one of its words"),
        ({"url": URL, "timeout": "2h"}, "timeout: is out of range"),
        ({"url": URL, "timeout": 0}, "timeout: is out of range"),
        ({"url": URL, "expectStatus": [999]}, r"payload\.expectStatus"),
        ({"url": URL, "retryOn": [999]}, r"payload\.retryOn"),
        ({"url": URL, "retryOn": ["6xx"]}, r"payload\.retryOn"),
        ({"url": URL, "sign": "lower"}, r"payload\.sign"),
        ({"url": URL, "body": {"a": {"$run": "x"}}}, r"payload\.body"),
        ({"url": URL, "headers": {"X-Mainspring-Signature": "x"}}, "is set by Mainspring"),
        ({"url": URL, "headers": {"idempotency-key": "x"}}, "is set by Mainspring"),
    ],
)
@in_virtual_time
async def test_a_bad_payload_is_rejected_at_submit_and_by_the_worker(payload: dict[str, object], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        BuiltinTasks().check("http", msgspec.json.encode(payload))
    egress = FakeEgress()
    async with a_worker(egress) as run:
        assert (await run(**payload)).state is RunState.FAILED
    assert egress.sent == []


def test_the_http_task_can_be_turned_off() -> None:
    off = BuiltinTasks(http=False)
    assert off.names == []
    assert dict(off.handlers(FakeEgress)) == {}
    with pytest.raises(Invalid, match="calling URLs is off here"):
        off.check("http", b'{"url":"https://example.org"}')


def test_payloads_of_other_tasks_are_not_checked() -> None:
    BuiltinTasks(http=False).check("mail", b"not even JSON")
