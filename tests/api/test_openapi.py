"""The OpenAPI document and the docs page rendered from it."""

import base64
import hashlib
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from schemathesis.openapi import from_dict

from mainspring.config.resources import RESOURCES
from mainspring.http.docs.openapi import build_document, format_json
from tests.api.conftest import memory_only

KEPT = Path(__file__).parents[2] / "docs/reference/openapi.json"
OPERATIONS = [operation for resource in RESOURCES for operation in resource.operations]


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return build_document(RESOURCES, metadata.version("mainspring"))


def everything(value: Any) -> Iterator[Any]:
    yield value
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        yield from everything(child)


def test_the_committed_openapi_document_is_up_to_date(made: dict[str, Any]) -> None:
    if KEPT.read_text() != format_json(made):
        pytest.fail("docs/reference/openapi.json is out of date: run make openapi", pytrace=False)


def test_the_document_is_valid_openapi_3_1(made: dict[str, Any]) -> None:
    plain = json.loads(format_json(made))
    from_dict(plain).validate()
    for schema in plain["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def test_every_reference_and_link_of_the_document_exists(made: dict[str, Any]) -> None:
    for value in everything(made):
        if isinstance(value, dict) and isinstance(value.get("$ref"), str):
            found: Any = made
            for part in value["$ref"].removeprefix("#/").split("/"):
                found = found[part]
    names = [operation.name for operation in OPERATIONS]
    assert len(set(names)) == len(names)
    links = [
        link
        for path in made["paths"].values()
        for operation in path.values()
        for answer in operation["responses"].values()
        for link in answer.get("links", {}).values()
    ]
    assert {link["operationId"] for link in links} <= set(names)


def test_operations_that_create_link_to_operations_on_the_result(made: dict[str, Any]) -> None:
    created = made["paths"]["/v1/jobs"]["post"]["responses"]["201"]["links"]
    assert {"get_job", "change_job", "update_job", "cancel_job", "job_status", "job_runs", "run_job"} <= created.keys()
    assert created["get_job"]["parameters"] == {"id": "$response.body#/jobId"}
    again = made["paths"]["/v1/jobs/{id}/run"]["post"]["responses"]["201"]["links"]
    assert again["get_run"]["parameters"] == {"id": "$response.body#/runId"}
    registered = made["paths"]["/v1/workers/register"]["post"]["responses"]["201"]["links"]
    assert {"claim", "heartbeat"} <= registered.keys()


def test_every_number_has_a_format(made: dict[str, Any]) -> None:
    for value in everything(made):
        kind = value.get("type") if isinstance(value, dict) else None
        kinds = kind if isinstance(kind, list) else [kind]
        if "integer" in kinds:
            small = value.get("maximum", 2**31) < 2**31 and "minimum" in value
            assert value["format"] == ("int32" if small else "int64"), value
        if "number" in kinds:
            assert value["format"] == "double", value
    assert made["components"]["schemas"]["ClaimedRun"]["properties"]["fence"]["format"] == "int64"


def test_a_union_is_only_a_reference_or_null(made: dict[str, Any]) -> None:
    """Generated clients in Go and Java cannot compile others."""
    unions = [value["anyOf"] for value in everything(made) if isinstance(value, dict) and "anyOf" in value]
    assert all("$ref" in form and null == {"type": "null"} for form, null in unions)
    assert not [value for value in everything(made) if isinstance(value, dict) and {"oneOf", "allOf"} & value.keys()]


def test_a_duration_is_a_string_with_a_default_that_is_one(made: dict[str, Any]) -> None:
    breaker = made["components"]["schemas"]["BreakerIn"]["properties"]
    assert (breaker["within"]["type"], breaker["within"]["default"]) == ("string", "1m")


def test_unions_are_complete_on_request() -> None:
    full = build_document(RESOURCES, "0", unions=True)["components"]["schemas"]["JobIn"]["properties"]
    assert [form["type"] for form in full["timeout"]["anyOf"]] == ["string", "number"]
    assert len(full["datacenters"]["anyOf"]) == 3
    assert "x-shorthand" not in json.dumps(full)


def test_names_of_schemas_do_not_collide_with_generated_names(made: dict[str, Any]) -> None:
    """A Go client has functions and types such as NewJobIn and NullableJobIn for the schema JobIn."""
    names = made["components"]["schemas"].keys()
    assert len({name.casefold() for name in names}) == len(names)
    assert not {f"{prefix}{name}" for prefix in ("New", "Nullable") for name in names} & names


def test_nothing_in_the_document_is_unused(made: dict[str, Any]) -> None:
    used = {value["$ref"] for value in everything(made) if isinstance(value, dict) and "$ref" in value}
    components = made["components"]
    assert used == {f"#/components/{kind}/{name}" for kind in ("schemas", "responses") for name in components[kind]}


def test_every_operation_has_a_description_beside_its_summary(made: dict[str, Any]) -> None:
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), f"{method} {path} has no description"
            assert operation["description"] != operation["summary"]


def test_the_server_accepts_every_example_of_a_body() -> None:
    examples = [(operation, operation.example) for operation in OPERATIONS if operation.example is not None]
    assert {"create_job", "register", "claim", "heartbeat", "complete"} <= {operation.name for operation, _ in examples}
    for operation, example in examples:
        operation.read_body(json.dumps(example).encode(), {})


def test_a_query_parameter_has_the_description_of_its_field(made: dict[str, Any]) -> None:
    parameters = made["paths"]["/v1/autoscale"]["get"]["parameters"]
    words = {parameter["name"]: parameter.get("description") for parameter in parameters}
    assert words["slots"] == "How many runs of a queue one worker takes at once."


@memory_only
async def test_the_api_serves_its_document(client: httpx2.AsyncClient, made: dict[str, Any]) -> None:
    served = await client.get("/openapi.json")
    assert served.json() == json.loads(format_json(made))


class Page(HTMLParser):
    """The tags, references and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.references: set[str] = set()
        self.anchors: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data", "poster"):
                self.references.add(value or "")
            if name == "id":
                self.anchors.append(value or "")


@memory_only
async def test_the_docs_page_loads_nothing_from_other_hosts(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = Page()
    page.feed(answer.text)
    assert not page.tags & {"link", "img", "iframe", "object", "embed"}
    assert answer.text.count("<script") == answer.text.count("<script>") == 1
    assert all(reference.startswith(("#", "/")) for reference in page.references)
    assert not any(reference.startswith("//") for reference in page.references)
    assert "url(" not in answer.text
    assert "@import" not in answer.text


@memory_only
async def test_the_docs_page_allows_its_own_style_and_script_only(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/docs")
    policy = answer.headers["content-security-policy"]
    for tag in ("style", "script"):
        _, _, rest = answer.text.partition(f"<{tag}>")
        text, _, _ = rest.partition(f"</{tag}>")
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'self'; base-uri 'none'; form-action 'none'" in policy
    assert "unsafe" not in policy


@memory_only
async def test_the_docs_page_has_every_operation_and_every_schema(
    client: httpx2.AsyncClient, made: dict[str, Any]
) -> None:
    text = (await client.get("/docs")).text
    page = Page()
    page.feed(text)
    assert len(page.anchors) == len(set(page.anchors))
    for operation in OPERATIONS:
        assert operation.name in page.anchors
        assert f'<span class="method">{operation.method}</span>{operation.path}</h3>' in text
    for name in made["components"]["schemas"]:
        assert f"schema-{name}" in page.anchors
    assert "string or null" in text
    assert "[&#x27;" not in text, "a list of Python is in the page"
    assert {reference[1:] for reference in page.references if reference.startswith("#")} <= set(page.anchors)
