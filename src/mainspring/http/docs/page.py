"""Renders the API as one HTML page without scripts or external resources."""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from typing import Any

from mainspring.http.problem_types import ProblemType

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --accent: #2563eb; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; display: grid; grid-template-columns: 18rem 1fr; }
nav { position: sticky; top: 0; height: 100vh; overflow: auto; padding: 1rem; border-right: 1px solid var(--line);
  box-sizing: border-box; font-size: 0.9rem; }
nav a { display: block; color: inherit; text-decoration: none; padding: 0.1rem 0; }
nav a:hover { color: var(--accent); }
nav b { display: block; margin-top: 1rem; }
main { padding: 1rem 2rem 6rem; max-width: 60rem; min-width: 0; }
section { border-top: 1px solid var(--line); padding: 1rem 0; }
h3 { font: 600 1rem ui-monospace, monospace; margin: 0 0 0.3rem; overflow-wrap: anywhere; }
.method { display: inline-block; min-width: 4rem; color: var(--accent); }
.may { float: right; font: 0.8rem system-ui; padding: 0.1rem 0.5rem; border: 1px solid var(--line);
  border-radius: 1rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; margin: 0.5rem 0; }
td, th { text-align: left; vertical-align: top; padding: 0.25rem 0.5rem; border-bottom: 1px solid var(--soft); }
td:first-child { font-family: ui-monospace, monospace; white-space: nowrap; }
code { font-family: ui-monospace, monospace; background: var(--soft); padding: 0 0.2rem; border-radius: 0.2rem; }
details { margin: 0.3rem 0; } summary { cursor: pointer; }
@media (max-width: 50rem) { body { display: block; } nav { position: static; height: auto; } }
"""
#: The page may use its own style and nothing else.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; frame-ancestors 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)


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
            menu.append(f'<a href="#{name}">{escape(operation["summary"].rstrip("."))}</a>')
            sections.append(_section(path, method, operation, document["components"]["responses"]))
    schemas = "".join(_schema(name, schema) for name, schema in document["components"]["schemas"].items())
    info = document["info"]
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(info["title"])} API {escape(info["version"])}</title><style>{_STYLE}</style></head>
<body><nav><strong>{escape(info["title"])} API {escape(info["version"])}</strong>
<a href="/openapi.json">openapi.json</a>{"".join(menu)}<b>Shapes</b><a href="#shapes">All of them</a></nav>
<main><h1>{escape(info["title"])} API</h1><p>{_words(info["description"])}
JSON in and out, times in RFC 3339, errors as problem+json with the field that is wrong.
Send <code>Authorization: Bearer &lt;API key or token&gt;</code> where authentication is set up.</p>
{"".join(sections)}<h2 id="shapes">Shapes</h2>{schemas}</main></body></html>"""
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
    parts = [
        (
            f'<section id="{operation["operationId"]}"><span class="may">{escape(may) if may else "anybody"}</span>'
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
    parts.append(f"<details><summary>Answers</summary><table>{rows}</table></details></section>")
    return "".join(parts)


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td>{escape(field)}{'' if field in required else '?'}</td><td>{_kind(kind)}</td>"
        f"<td>{_words(kind.get('description', ''))}</td></tr>"
        for field, kind in schema.get("properties", {}).items()
    )
    return (
        f'<section id="shape-{escape(name)}"><h3>{escape(name)}</h3><p>{_words(schema.get("description", ""))}</p>'
        f"<table>{rows}</table></section>"
    )


def _kind(schema: dict[str, Any]) -> str:
    """Describe a schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f'<a href="#shape-{escape(name)}">{escape(name)}</a>'
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
