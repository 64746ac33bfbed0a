"""The OpenAPI 3.1 document, built from the types that decode requests and encode answers."""

import ast
import inspect
import itertools
import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from mainspring.core.model.access.access import Permission
from mainspring.http.docs.portable import make_portable
from mainspring.http.operation import Empty, Operation, Resource
from mainspring.http.problems import MEDIA_TYPE, Problem
from mainspring.http.schemas.common import Request, Wire

_REF = "#/components/schemas/{name}"
_PROBLEM_REF = "#/components/responses/{status}"
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 0}}}
_DONE = {200: "Success.", 201: "Created and committed.", 202: "Accepted and still in progress."}
_PROBLEMS = {
    400: "The request is invalid; `field` names the field or parameter.",
    401: "Credentials are missing, wrong, expired or revoked.",
    403: "The role does not allow it.",
    404: "Not found, or you don't have access to it.",
    409: "The current state does not allow it.",
    413: "The body is too large.",
    415: "The body is not plain JSON.",
    429: "Too many requests; retry after `Retry-After` seconds.",
    503: "The store did not answer; retry after `Retry-After` seconds.",
}
#: The problems that any operation with authentication may return.
_ALWAYS: tuple[int, ...] = (400, 401, 403, 429, 503)
_ON_BODIES = (413, 415)
#: The id fields of created objects in answers, and the paths of these objects.
_MADE = {"jobId": "/v1/jobs/{id}", "runId": "/v1/runs/{id}", "workerId": "/v1/workers/{id}", "keyId": "/v1/keys/{id}"}


def build_document(resources: Sequence[Resource], version: str, *, unions: bool = False) -> dict[str, Any]:
    """Build the document that the API serves. With ``unions`` it has every form of a value that the server accepts."""
    operations = [operation for resource in resources for operation in resource.operations]
    schemas, components = _schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas, operations)
    made = {
        "openapi": "3.1.0",
        "info": {
            "title": "Mainspring",
            "version": version,
            "description": "Run work now, later or on a schedule, and prove that it ran.",
            "contact": {"name": "The Mainspring developers"},
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": resource.tag, "description": resource.about} for resource in resources],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {str(status): _problem(status, schemas) for status in _PROBLEMS},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "description": "An API key or a JWT."}},
        },
    }
    portable: dict[str, Any] = make_portable(made, unions=unions)
    _drop_unused(portable)
    return portable


def _schemas(operations: Sequence[Operation]) -> tuple[dict[int, Any], dict[str, Any]]:
    """Return the schemas by the identity of their type, and the components they refer to."""
    kinds: list[Any] = [Problem]
    for operation in operations:
        kinds += [kind for kind in (operation.body, *operation.answers.values()) if kind is not Empty]
        kinds += [field.type for field in msgspec.structs.fields(operation.query)]
    made, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    _describe(components)
    _drop_nulls(components)
    return {id(kind): schema for kind, schema in zip(kinds, made, strict=True)}, dict(sorted(components.items()))


def _describe(components: dict[str, Any]) -> None:
    """Copy the docstrings under fields into the document."""
    for kind in _structs():
        schema = components.get(kind.__name__)
        if schema is None:
            continue
        words = _words_under_fields(kind)
        for field in msgspec.structs.fields(kind):
            if field.name in words and field.encode_name in schema.get("properties", {}):
                schema["properties"][field.encode_name]["description"] = words[field.name]


def _drop_unused(document: dict[str, Any]) -> None:
    """Remove the schemas that nothing refers to, such as those of unions that became any JSON."""
    schemas = document["components"]["schemas"]
    while unused := schemas.keys() - set(_references(document)):
        for name in unused:
            del schemas[name]


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            yield reference.rsplit("/", 1)[-1]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _references(item)


def _drop_nulls(components: dict[str, Any]) -> None:
    """Remove null from the fields of answers that are left out where they have no value."""
    for kind in _structs():
        if issubclass(kind, Wire) and kind.__struct_config__.omit_defaults and kind.__name__ in components:
            properties = components[kind.__name__].get("properties", {})
            for field in msgspec.structs.fields(kind):
                if field.default is None:
                    schema = _without_null(properties[field.encode_name])
                    properties[field.encode_name] = {key: value for key, value in schema.items() if key != "default"}


def _structs() -> Iterator[type[msgspec.Struct]]:
    waiting: list[type[msgspec.Struct]] = [Wire, Request]
    while waiting:
        kind = waiting.pop()
        yield kind
        waiting += kind.__subclasses__()


def _words_under_fields(kind: type[msgspec.Struct]) -> dict[str, str]:
    words: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, Wire | Request) and base not in (Wire, Request):
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
            assert isinstance(body, ast.ClassDef)
            for before, after in itertools.pairwise(body.body):
                if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
                    value = after.value
                    if isinstance(value, ast.Constant) and isinstance(before.target, ast.Name):
                        words[before.target.id] = " ".join(str(value.value).split())
    return words


def _operation(operation: Operation, schemas: dict[int, Any], others: Sequence[Operation]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation, schemas, others),
    }
    if operation.description:
        found["description"] = operation.description
    parameters = _parameters(operation, schemas)
    if parameters:
        found["parameters"] = parameters
    if operation.body is not Empty:
        found["requestBody"] = {
            "required": not operation.body_optional,
            "content": {"application/json": {"schema": schemas[id(operation.body)]}},
        }
        if operation.example is not None:
            found["requestBody"]["content"]["application/json"]["example"] = operation.example
    if operation.permission is None:
        found["security"] = []
    else:
        found["security"] = [{"bearer": []}]
        found["x-permission"] = operation.permission.value
    return found


def _parameters(operation: Operation, schemas: dict[int, Any]) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for part in operation.path.split("/")
        if part.startswith("{")
    ]
    words = _words_under_fields(operation.query)
    for field in msgspec.structs.fields(operation.query):
        schema = _without_null(schemas[id(field.type)])
        default = field.default
        if default not in (None, msgspec.UNSET, msgspec.NODEFAULT):
            schema = {**schema, "default": default}
        parameter = {"name": field.encode_name, "in": "query", "required": field.required, "schema": schema}
        if field.name in words:
            parameter["description"] = words[field.name]
        parameters.append(parameter)
    return parameters


def _responses(operation: Operation, schemas: dict[int, Any], others: Sequence[Operation]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in operation.answers.items():
        if kind is Problem:
            responses[str(status)] = {"$ref": _PROBLEM_REF.format(status=status)}
            continue
        content = {operation.media_type: {"schema": schemas[id(kind)]}}
        responses[str(status)] = {"description": _DONE.get(status) or _PROBLEMS[status], "content": content}
        if status == 201:
            responses[str(status)]["links"] = _links(operation, kind, others)
    expected = _ALWAYS if operation.permission is not None else (400,)
    if operation.method in ("POST", "PUT", "PATCH"):
        expected += _ON_BODIES
    for status in expected:
        responses.setdefault(str(status), {"$ref": _PROBLEM_REF.format(status=status)})
    return dict(sorted(responses.items()))


def _problem(status: int, schemas: dict[int, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "description": _PROBLEMS[status],
        "content": {MEDIA_TYPE: {"schema": schemas[id(Problem)]}},
    }
    if status in (429, 503):
        found["headers"] = _RETRY_AFTER
    return found


def _links(operation: Operation, kind: Any, others: Sequence[Operation]) -> dict[str, Any]:
    """Return links from a created object to the operations on it.

    Worker operations link to worker operations only.
    """
    names = {field.encode_name for field in msgspec.structs.fields(kind)}
    works = operation.permission is Permission.WORK
    return {
        other.name: {"operationId": other.name, "parameters": {"id": f"$response.body#/{name}"}}
        for name, path in _MADE.items()
        if name in names
        for other in others
        if f"{other.path}/".startswith(f"{path}/")
        and other.path.count("{") == 1
        and (other.permission is Permission.WORK) == works
    }


def format_json(document: dict[str, Any]) -> str:
    """Format the document for docs/reference."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null from a query parameter's schema, because a parameter is present or absent."""
    choices = schema.get("anyOf")
    if choices is None:
        return schema
    left = [choice for choice in choices if choice != {"type": "null"}]
    return {**schema, "anyOf": left}
