"""Fuzz targets of HTTP requests: bodies of ``POST /v1/jobs``, and filters of every list."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st

from mainspring.config.resources import RESOURCES
from mainspring.http.schemas.jobs import JobIn
from tests.api.conftest import Service
from tests.support.line_count import at_most_lines
from tools.fuzz.target import Target, mixed, mutated
from tools.fuzz.texts import CRON, DURATIONS

#: A store that grows without end would make each example slower than the one before.
_REQUESTS_PER_SERVICE = 300
_PROBLEM = "application/problem+json"
_LONGEST_ANSWER = 1_000_000
_MOST_LINES = 500_000


class Caller:
    """An API in memory, replaced by a new one from time to time."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._renew()

    def _renew(self) -> None:
        self._left = _REQUESTS_PER_SERVICE
        self._service = Service(auth=False)
        # The first request builds what all later ones use.
        self._runner.run(self._call("GET", "/v1/jobs", {}))

    def call(self, method: str, url: str, **options: Any) -> None:
        """Send a request. Raise unless the answer is one that the document of the API has."""
        self._left -= 1
        if self._left == 0:
            self._renew()
        with at_most_lines(_MOST_LINES):
            self._runner.run(self._call(method, url, options))

    async def _call(self, method: str, url: str, options: Mapping[str, Any]) -> None:
        async with self._service.client() as client:
            answer = await client.request(method, url, **options)
        assert len(answer.content) <= _LONGEST_ANSWER
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            assert answer.status_code in (400, 404, 409, 413, 415), (answer.status_code, answer.text)
            assert answer.headers["content-type"].startswith(_PROBLEM), answer.text
            assert {"title", "status", "detail"} <= answer.json().keys()


@cache
def caller() -> Caller:
    return Caller()


_JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(["", "\x00", "\ud800", "a" * 300, "2026-13-01T00:00:00Z", "9999-12-31T23:59:59Z", "+00:00"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_NAMES = mutated("billing", "a.b-c_d", "video/720p", "x" * 200)
#: Values that come close to what is accepted, by field.
_CLOSE: dict[str, st.SearchStrategy[Any]] = {
    "task": _NAMES,
    "cronExpression": CRON,
    **dict.fromkeys(
        ("every", "delay", "timeout", "deadline", "startWithin", "jitter"),
        DURATIONS.filter(lambda value: isinstance(value, str | int | float)),
    ),
    "scheduleType": st.sampled_from(["immediate", "once", "recurring", "one-time"]),
    **dict.fromkeys(("scheduleTime", "endTime"), mutated("2030-01-01T00:00:00Z", "2030-06-01T09:00:00+02:00")),
    "timezone": st.sampled_from(["UTC", "Europe/Berlin", "../../etc/passwd", "localtime", "posixrules", "right/UTC"]),
    "orderingKey": _NAMES,
    "limits": st.lists(st.fixed_dictionaries({"key": mutated("user:{user}", "{a.b}", "{")}), max_size=2),
    "retry": st.dictionaries(st.sampled_from(["backoff", "firstDelay", "retryOn", "x"]), _JUNK, max_size=3),
    "catchUp": st.dictionaries(st.sampled_from(["mode", "cap", "maxAge", "pace", "grace"]), _JUNK, max_size=3),
    "dependsOn": st.lists(st.sampled_from(["#0", "0" * 32, "name", ""]), max_size=3),
}
_NO_JOBS = (b"[" * 5_000, b'{"payload":' * 5_000, b'{"task":"t","task":"u"}', b"\xff\xfe{}", b"1e999")
_FIELDS = tuple(field.encode_name for field in msgspec.structs.fields(JobIn))


@st.composite
def job_bodies(draw: st.DrawFn) -> bytes:
    """A job with some fields that are nearly right; or JSON, or bytes, that are no job at all."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=100))
    if kind == 1:
        return draw(st.sampled_from(_NO_JOBS))
    body: Any = {"task": "t"} if draw(st.booleans()) else {}
    for name in draw(st.lists(st.sampled_from(_FIELDS), max_size=6)):
        close = _CLOSE.get(name, _NAMES)
        body[name] = draw(st.one_of(close, close, _JUNK))
    if kind == 2:
        body[draw(st.text(max_size=8))] = draw(_JUNK)
    if kind == 3:
        body = draw(_JUNK)
    return json.dumps(body).encode()


def check_job_body(body: bytes) -> None:
    caller().call("POST", "/v1/jobs", content=body, headers={"content-type": "application/json"})


def _lists() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The path of every list, with its filters."""
    for resource in RESOURCES:
        for operation in resource.operations:
            fields = msgspec.structs.fields(operation.query) if isinstance(operation.query, type) else ()
            names = tuple(field.encode_name for field in fields)
            if operation.method == "GET" and "limit" in names and "{" not in operation.path:
                yield operation.path, names


LISTS = dict(_lists())
_FILTER = st.one_of(
    _NAMES,
    mixed("succeeded", "failed", "queued", ",", " ", "x", "%", "*", "'", '"', "\\", "\x00", "::", "{", "true", "null"),
    mutated("2026-01-01T00:00:00Z", "0" * 32, "01a1f09dc1af7000806213c892198144", "eyJhIjoxfQ", "50", "user.id=5"),
    st.integers().map(str),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
)


@st.composite
def filters(draw: st.DrawFn) -> tuple[str, list[tuple[str, str]]]:
    path = draw(st.sampled_from(sorted(LISTS)))
    names = st.sampled_from(LISTS[path]) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
    return path, draw(st.lists(st.tuples(names, _FILTER), max_size=4))


def check_filters(case: tuple[str, list[tuple[str, str]]]) -> None:
    path, given = case
    caller().call("GET", path, params=given)


TARGETS = {
    "jobs": Target(job_bodies(), check_job_body, examples=8_000),
    "lists": Target(filters(), check_filters, examples=10_000),
}
