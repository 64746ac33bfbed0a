"""Renders templates: every value is escaped, and an undefined variable is an error."""

from collections.abc import Mapping
from functools import cache, partial
from importlib import metadata, resources
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, StrictUndefined
from msgspec import UnsetType

from mainspring.core.model.base.headline import find_headline
from mainspring.web import formatting as words
from mainspring.web.charts import read_legend
from mainspring.web.navigation import ON_A_PHONE, SECTIONS
from mainspring.web.page import Visit
from mainspring.web.redaction import MASK
from mainspring.web.session import mask
from mainspring.web.static_files import static_files
from mainspring.web.text import ansi, is_cut, moments, pretty, typed, visible


@cache
def environment() -> Environment:
    made = Environment(
        loader=ChoiceLoader(_list_loaders()),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        absolute=words.absolute,
        ansi=ansi,
        count=words.count,
        duration=words.duration,
        pretty=pretty,
        editable=_editable,
        headline=find_headline,
        moments=moments,
        legend=read_legend,
        query=_query,
        segment=partial(quote, safe=""),
        sentence=words.sentence,
        short=words.short,
    )
    made.tests["unset"] = lambda value: isinstance(value, UnsetType)
    made.globals.update(
        plural=words.plural, sections=SECTIONS, on_a_phone=ON_A_PHONE, version=metadata.version("mainspring")
    )
    return made


def _list_loaders() -> list[BaseLoader]:
    """Return one loader for the frame, and one for each feature that has templates."""
    features = (entry for entry in resources.files("mainspring.features").iterdir() if (entry / "templates").is_dir())
    packages = ["mainspring.web", *sorted(f"mainspring.features.{entry.name}" for entry in features)]
    return [PackageLoader(package, "templates") for package in packages]


def render(visit: Visit[Any], template: str, values: Mapping[str, Any], csrf: str) -> bytes:
    static = f"{visit.base}static/{static_files().version}/"
    text = (
        environment()
        .get_template(template)
        .render(
            visit=visit,
            base=visit.base,
            static=static,
            may=visit.may,
            csrf=partial(mask, csrf),
            ago=lambda iso: words.relative(iso, visit.now),
            short_time=lambda iso: words.short_time(iso, visit.now),
            took=lambda start, end: words.between(start, end, visit.now),
            **values,
        )
    )
    return text.encode(errors="replace")


def _editable(raw: Any) -> str:
    """Return JSON to edit in a form. Empty if it is cut or redacted; the value then stays unchanged."""
    text = typed(raw) or "null"
    return "" if is_cut(raw) or MASK in text else text


def _query(values: Mapping[str, object], **changed: object) -> str:
    """Return a query string with some parameters changed and the empty ones removed."""
    merged = {**values, **changed}
    return urlencode({name: value for name, value in merged.items() if value not in (None, "")})
