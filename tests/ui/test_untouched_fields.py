"""A form leaves the fields that the user did not change as they were, with any character in them."""

from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

import httpx2
import pytest

from tests.api.conftest import Service
from tests.ui.test_door import ui

#: Text that changes direction, has no width or rings a bell, and text that looks like the page's notation for it.
HIDDEN = "a\u200fb\u200bc\x07d\x85e\ufefff‹U+200F›"
PAYLOAD = {"text": HIDDEN, HIDDEN: [1, 1.0, True, "line\nend\ttab\\u200f"], "sum": 0.1}
#: Names may only have printable characters.
NAME = 'ü ‹U+200F› "q" & <b>, c'
LARGE = {"text": "x" * 70_000 + HIDDEN}


class Fields(HTMLParser):
    """The fields of each form by its action, as a browser would send them."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: dict[str, dict[str, str]] = {}
        self._form: dict[str, str] = {}
        self._area = self._select = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        name = given.get("name", "")
        match tag:
            case "form":
                self._form = self.forms.setdefault(given.get("action", ""), {})
            case "input" if name:
                if given.get("type") not in ("radio", "checkbox") or "checked" in given:
                    self._form[name] = given.get("value", "on")
            case "textarea":
                self._area = name
                self._form[name] = ""
            case "select":
                self._select = name
            case "option" if self._select and ("selected" in given or self._select not in self._form):
                self._form[self._select] = given.get("value", "")
            case _:
                pass

    def handle_data(self, data: str) -> None:
        if self._area:
            self._form[self._area] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = ""
        elif tag == "select":
            self._select = ""


async def read_form(client: httpx2.AsyncClient, page: str, action: str) -> dict[str, str]:
    answer = await client.get(page)
    assert answer.status_code == 200, answer.text
    fields = Fields()
    fields.feed(answer.text)
    return fields.forms[action]


async def send(client: httpx2.AsyncClient, path: str, form: Mapping[str, str]) -> str:
    """Post a form with the line ends of a browser, and return the redirect."""
    data = {name: value.replace("\n", "\r\n") for name, value in form.items()}
    answer = await client.post(path, data=data)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


@pytest.fixture
def local() -> Service:
    return Service(auth=False)


async def create_job(service: Service, **fields: object) -> str:
    async with service.client() as api:
        answer = await api.post("/v1/jobs", json={"task": "t", **fields})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["jobId"])


async def read(service: Service, path: str) -> Any:
    async with service.client() as api:
        return (await api.get(f"/v1/{path}")).json()


@pytest.mark.parametrize("payload", [PAYLOAD, LARGE, HIDDEN, None], ids=["object", "large", "text", "none"])
async def test_editing_the_cron_expression_changes_nothing_else(local: Service, payload: object) -> None:
    names = {"name": NAME, "queue": NAME, "owner": NAME, "tags": [NAME, "b"]}
    job = await create_job(local, cronExpression="0 4 * * *", payload=payload, **names)
    path = f"/jobs/{job}/edit"
    async with ui(local) as client:
        form = await read_form(client, path, path)
        await send(client, path, {**form, "cronExpression": "0 5 * * *"})
    assert set((await read(local, f"jobs/{job}/diff"))["changes"]) == {"cronExpression"}
    found = await read(local, f"jobs/{job}")
    assert (found.get("payload"), found["cronExpression"]) == (payload, "0 5 * * *")
    assert {name: found[name] for name in names} == names


async def test_editing_a_part_of_a_payload_keeps_the_rest(local: Service) -> None:
    job = await create_job(local, name="n", every="1h", payload=PAYLOAD)
    path = f"/jobs/{job}/edit"
    async with ui(local) as client:
        form = await read_form(client, path, path)
        await send(client, path, {**form, "payload": form["payload"].replace("0.1", "0.2")})
    assert (await read(local, f"jobs/{job}"))["payload"] == {**PAYLOAD, "sum": 0.2}


async def test_a_value_can_change_its_type_and_whitespace_is_no_change(local: Service) -> None:
    job = await create_job(local, name="n", every="1h", payload={"a": 1, "b": 2})
    path = f"/jobs/{job}/edit"
    async with ui(local) as client:
        form = await read_form(client, path, path)
        await send(client, path, {**form, "payload": '{"a":1,"b":2}', "every": "2h"})
        assert set((await read(local, f"jobs/{job}/diff"))["changes"]) == {"every"}
        form = await read_form(client, path, path)
        await send(client, path, {**form, "payload": '{"a":true,"b":2}'})
    assert (await read(local, f"jobs/{job}"))["payload"]["a"] is True


async def test_editing_a_one_off_job_keeps_its_other_fields(local: Service) -> None:
    run = await create_job(local, name=NAME, queue=NAME, delay="2h", payload=LARGE)
    path = f"/jobs/{run}/edit"
    async with ui(local) as client:
        form = await read_form(client, path, path)
        assert "is not JSON" not in (await client.post(f"{path}/preview", data=form)).text
        await send(client, path, {**form, "maxRetries": "7"})
    found = await read(local, f"jobs/{run}")
    assert (found["name"], found["queue"], found["payload"], found["maxRetries"]) == (NAME, NAME, LARGE, 7)


async def test_a_copied_job_has_the_same_fields(local: Service) -> None:
    job = await create_job(local, name="n", owner=NAME, queue=NAME, every="1h", payload=PAYLOAD)
    async with ui(local) as client:
        form = await read_form(client, f"/jobs/new?like={job}", "/jobs/new")
        where = await send(client, "/jobs/new", {**form, "name": "other"})
    found = await read(local, where.lstrip("/"))
    assert (found["owner"], found["queue"], found["payload"]) == (NAME, NAME, PAYLOAD)


@pytest.mark.parametrize("payload", [PAYLOAD, LARGE], ids=["small", "large"])
async def test_run_now_and_retry_keep_the_payload(local: Service, payload: object) -> None:
    job = await create_job(local, name="n", every="1h", payload=payload)
    async with ui(local) as client:
        run = await send(client, f"/jobs/{job}/run", await read_form(client, f"/jobs/{job}", f"/jobs/{job}/run"))
        assert (await read(local, run.lstrip("/")))["payload"] == payload
        async with local.client() as api:
            await api.post(f"/v1{run}/cancel")
        again = await send(client, f"{run}/retry", await read_form(client, run, f"{run}/retry"))
        assert again != run
        assert (await read(local, again.lstrip("/")))["payload"] == payload
