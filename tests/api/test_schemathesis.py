"""The API accepts requests that the document allows and rejects the others, for every role.

By default a few examples of each operation are tested. ``MAINSPRING_API_EXAMPLES=100`` tests more of them, and every
phase for every role.
"""

import asyncio
import json
import os
import re
from functools import cache
from itertools import count
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.openapi import from_dict
from schemathesis.pytest.lazy import get_all_tests

from mainspring.config.resources import RESOURCES
from mainspring.core.model.access.access import Role
from mainspring.core.ports.storage.access import Author
from mainspring.http.auth.authenticator import make_key
from mainspring.http.docs.openapi import build_document, format_json
from mainspring.http.limits import TokenBuckets
from tests.api.conftest import Service
from tests.api.test_remote import claim, register, submit

pytestmark = pytest.mark.slow

SHORT = 3
EXAMPLES = int(os.environ.get("MAINSPRING_API_EXAMPLES", SHORT))
#: A schema cannot express that a time is in the past or that a cron never fires, so a 400 is always possible.
ANSWERS = ["2xx", "400", "401", "403", "404", "409", "429"]
#: Streams do not end; they have their own tests.
STREAMS = "/follow$|/v1/events$"
OPERATIONS = [
    f"{operation.method} {operation.path}"
    for resource in RESOURCES
    for operation in resource.operations
    if not re.search(STREAMS, operation.path)
]
CALLERS: dict[str, tuple[Role, str | None] | None] = {
    "anonymous": None,
    **{role.value: (role, "a") for role in Role},
    "admin of all": (Role.ADMIN, None),
}
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # A few examples are the same in every run; many examples are random.
    derandomize=EXAMPLES <= SHORT,
    database=None,
)


async def fill(service: Service) -> None:
    """Create objects of every kind, so that lists are not empty."""
    async with service.client(await service.key(Role.ADMIN, "a")) as client:
        await submit(client, name="one-off", tags=["x"], owner="me", payload={"a": 1})
        job = await submit(client, name="recurring", cronExpression="0 2 * * *", tags=["x"])
        await client.patch(f"/v1/jobs/{job}", json={"priority": 3, "why": "it may wait"})
        worker = await register(client)
        done, failed, _ = [await submit(client) for _ in range(3)]
        fences = {run["runId"]: run["fence"] for run in await claim(client, worker, limit=4)}
        await client.post(f"/v1/runs/{done}/log", json={"fence": fences[done], "text": "hello"})
        await client.post(f"/v1/runs/{done}/complete", json={"fence": fences[done], "result": 1})
        await client.post(f"/v1/runs/{failed}/fail", json={"fence": fences[failed], "error": "no", "retry": False})


class ReplaceableApp:
    """An ASGI application that can be replaced by a new one, so that scenarios are independent."""

    def __init__(self, caller: tuple[Role, str | None] | None) -> None:
        role, tenant = caller or (Role.VIEWER, "a")
        self._key, self.secret = make_key(name="caller", role=role, tenant=tenant, author="test")
        self.renew()

    def renew(self) -> None:
        service = Service(auth=True)
        service.api.wrong_credentials = TokenBuckets(service.clock, 0, 1)
        asyncio.run(fill(service))
        asyncio.run(service.store.put_key(self._key, Author("test", self._key.tenant)))
        self._app = service.app

    async def __call__(self, *connection: Any) -> None:
        await self._app(*connection)


@cache
def load_schema(caller: str) -> tuple[Any, ReplaceableApp]:
    app = ReplaceableApp(CALLERS[caller])
    # With every form of a value that the server accepts: the served document leaves some out.
    schema = from_dict(json.loads(format_json(build_document(RESOURCES, "0", unions=True))))
    schema.app = app
    schema.location = "/openapi.json"
    schema.config.checks.positive_data_acceptance.expected_statuses = ANSWERS
    # A deleted job is cancelled and can still be read; `?purge=true` has its own test.
    schema.config.checks.use_after_free.enabled = False
    if caller != "admin of all":
        # Roles differ in permissions, not in how requests are parsed.
        schema.config.phases.coverage.enabled = EXAMPLES > SHORT

    @schema.hook
    def map_body(context: Any, body: Any) -> Any:
        if isinstance(body, dict) and isinstance(body.get("waitSeconds"), int | float):
            body["waitSeconds"] = min(body["waitSeconds"], 0)
        return body

    if CALLERS[caller] is not None:

        @schema.auth()
        class Key:
            def get(self, case: Any, context: Any) -> str:
                return app.secret

            def set(self, case: Any, data: str, context: Any) -> None:
                case.headers["Authorization"] = f"Bearer {data}"

    return schema.exclude(path_regex=STREAMS), app


@SETTINGS
def ask(case: schemathesis.Case) -> None:
    case.call_and_validate()


@pytest.mark.timeout(0)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("caller", CALLERS)
def test_an_operation_answers_as_documented(caller: str, operation: str) -> None:
    """The cases are generated here and not at collection, where every xdist worker would generate all of them."""
    schema, _ = load_schema(caller)
    [made] = get_all_tests(schema=schema.include(name=operation), test_func=ask, settings=None, given_kwargs=None)
    assert isinstance(made, Ok), made
    _, test = made.ok()
    test()


@pytest.mark.timeout(0)
@pytest.mark.parametrize("caller", CALLERS)
def test_sequences_of_operations_answer_as_documented(caller: str) -> None:
    """Later operations use the objects that earlier ones created."""
    schema, app = load_schema(caller)

    class Machine(schema.as_state_machine()):  # type: ignore[misc]
        def setup(self) -> None:
            app.renew()
            self.numbers = count()

        def before_call(self, case: schemathesis.Case) -> None:
            assert case.meta is not None
            if case.operation.label == "POST /v1/jobs" and case.meta.generation.mode is GenerationMode.POSITIVE:
                # Random fields rarely make a valid job, and later operations need jobs of both kinds.
                number = next(self.numbers)
                case.body = {"task": "t"} if number % 2 else {"task": "t", "name": f"job {number}", "every": "1h"}

    Machine.run(settings=settings(SETTINGS, max_examples=EXAMPLES, stateful_step_count=10))
