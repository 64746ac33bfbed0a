"""Renders the API as one HTML page, from which a reader can send requests to this server. It loads nothing else."""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

from mainspring.http.problem_types import ProblemType

_STYLE = files("mainspring.http.docs").joinpath("page.css").read_text("utf-8")
_SCRIPT = files("mainspring.http.docs").joinpath("try_it.js").read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


#: The page of problems may use its own style and nothing else.
CONTENT_SECURITY_POLICY = f"default-src 'none'; frame-ancestors 'none'; style-src {_hash(_STYLE)}"
#: The page of the API may also run its own script, which sends requests to this server alone.
API_CONTENT_SECURITY_POLICY = (
    f"{CONTENT_SECURITY_POLICY}; script-src {_hash(_SCRIPT)}; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
#: The answer of these never ends.
_STREAMS = "text/event-stream"


def render(document: dict[str, Any]) -> bytes:
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    menu, sections = [], []
    for tag in document["tags"]:
        mine = [item for item in operations if tag["name"] in item[2]["tags"]]
        menu.append(f"<b>{escape(tag['name'])}</b>")
        sections.append(f"<h2>{escape(tag['name'])}</h2><p>{_words(tag['description'])}</p>")
        for path, method, operation in mine:
            name = operation["operationId"]
            menu.append(f'<a href="#{name}">{_words(operation["summary"].rstrip("."))}</a>')
            sections.append(_section(path, method, operation, document["components"]["responses"]))
    schemas = "".join(_schema(name, schema) for name, schema in document["components"]["schemas"].items())
    info = document["info"]
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(info["title"])} API {escape(info["version"])}</title><style>{_STYLE}</style></head>
<body><nav><strong>{escape(info["title"])} API {escape(info["version"])}</strong>
<a href="/openapi.json">openapi.json</a>{"".join(menu)}<b>Schemas</b><a href="#schemas">All schemas</a></nav>
<main><h1>{escape(info["title"])} API</h1><p>{_words(info["description"])}
Bodies and responses are JSON, times are RFC 3339. An error is
<code>application/problem+json</code> and names the field. If authentication is configured, send
 <code>Authorization: Bearer &lt;API key or token&gt;</code>.</p>
<div id="access" hidden><label for="key">API key or token for <b>Try it</b></label>
<form><input id="key" type="password" autocomplete="off" placeholder="not needed without authentication"></form>
<p>Requests go to this server and are executed. The key is kept in this field only and is gone when you leave the page.
</p></div>
{"".join(sections)}<h2 id="schemas">Schemas</h2>{schemas}</main><script>{_SCRIPT}</script></body></html>"""
    return page.encode()


def render_problems(types: Sequence[ProblemType]) -> bytes:
    """Return the page that describes the types of problems."""
    menu = "".join(f'<a href="#{one.slug}">{escape(one.title)}</a>' for one in types)
    sections = "".join(
        f'<section id="{one.slug}"><h3>{one.status} {escape(one.title)}</h3>'
        f"<p>{_words(one.meaning)}</p><p>{_words(one.remedy)}</p></section>"
        for one in types
    )
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Problems</title><style>{_STYLE}</style></head>
<body><nav><a href="/docs">API</a><b>Problems</b>{menu}</nav>
<main><h1>Problems</h1><p>Why a request was not done, and what to do.</p>{sections}</main></body></html>"""
    return page.encode()


def _section(path: str, method: str, operation: dict[str, Any], problems: dict[str, Any]) -> str:
    may = operation.get("x-permission")
    streams = any(_STREAMS in given.get("content", ()) for given in operation["responses"].values())
    target = "" if streams else f' data-method="{method}" data-path="{escape(path)}"'
    parts = [
        (
            f'<section id="{operation["operationId"]}"{target}>'
            f'<span class="may">{escape(may) if may else "no key needed"}</span>'
            f'<h3><span class="method">{method.upper()}</span>{escape(path)}</h3><p>{_words(operation["summary"])} '
            f"{_words(operation.get('description', ''))}</p>"
        )
    ]
    if operation.get("parameters"):
        rows = "".join(
            f"<tr><td>{escape(item['name'])}</td><td>{item['in']}</td><td>{_kind(item['schema'])}</td>"
            f"<td>{_words(item.get('description', ''))}</td></tr>"
            for item in operation["parameters"]
        )
        parts.append(f"<table><tr><th>Parameter</th><th>in</th><th></th><th></th></tr>{rows}</table>")
    body = operation.get("requestBody")
    if body is not None:
        parts.append(f"<p>Body: {_kind(body['content']['application/json']['schema'])}</p>")
    rows = "".join(
        f"<tr><td>{status}</td><td>{_words(answer['description'])}</td>"
        f"<td>{_kind(next(iter(answer['content'].values()))['schema'])}</td></tr>"
        for status, given in operation["responses"].items()
        for answer in [problems[status] if "$ref" in given else given]
    )
    parts.append(f"<details><summary>Responses</summary><table>{rows}</table></details></section>")
    return "".join(parts)


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td>{escape(field)}{'' if field in required else '?'}</td><td>{_kind(kind)}</td>"
        f"<td>{_words(kind.get('description', ''))}</td></tr>"
        for field, kind in schema.get("properties", {}).items()
    )
    return (
        f'<section id="schema-{escape(name)}"><h3>{escape(name)}</h3><p>{_words(schema.get("description", ""))}</p>'
        f"<table>{rows}</table></section>"
    )


def _kind(schema: dict[str, Any]) -> str:
    """Describe a schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f'<a href="#schema-{escape(name)}">{escape(name)}</a>'
    if "enum" in schema:
        words = ("null" if value is None else str(value) for value in schema["enum"])
        return " | ".join(f"<code>{escape(word)}</code>" for word in words)
    if "anyOf" in schema:
        return " or ".join(_kind(choice) for choice in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    limits = [
        f"{words} {schema[key]}"
        for key, words in (("minimum", "from"), ("maximum", "to"), ("maxLength", "at most"), ("default", "default"))
        if key in schema
    ]
    kind = schema.get("type", "any JSON")
    return escape(kind if isinstance(kind, str) else " or ".join(kind)) + (
        f" <small>({escape(', '.join(limits))})</small>" if limits else ""
    )


def _words(text: str) -> str:
    """Escape text for HTML and turn backticks into code elements."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
