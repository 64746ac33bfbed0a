"""Mapping of records from other systems: templates over a record's key, headers and value."""

import re
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.repeated_keys import find_repeated_key
from mainspring.core.model.limits.key_template import PLACEHOLDER, check_braces, find_value, format_value

_HINT = "for example {value.videoId}, {headers.type} or {key}; a path has dots between names"
_ROOTS = ("key", "headers", "value")
#: A suffix of a path: the field is omitted if the record has no such value.
_OPTIONAL = "?"

#: A text with placeholders, or JSON that contains such texts.
Template: TypeAlias = "str | int | float | bool | list[Template] | dict[str, Template]"


class Record:
    """A record that another system produced."""

    def __init__(self, key: bytes | None, headers: Mapping[str, bytes | None], value: bytes) -> None:
        self._key = key
        self._headers = headers
        self._value = value
        #: The value decoded from JSON; empty until a template needs it.
        self._decoded: list[object] = []

    def find(self, path: str) -> object:
        """Return the value at a path. Raise ``LookupError`` if it is missing and ``ValueError`` if it cannot be
        decoded.
        """
        root, _, rest = path.partition(".")
        if root == "key":
            return _decode_text(self._key, "key")
        if root == "headers":
            return _decode_text(self._headers[rest], f"header {rest!r}")
        if not self._decoded:
            try:
                decoded = msgspec.json.decode(self._value)
                repeated = find_repeated_key(self._value, decoded)
            except (msgspec.DecodeError, RecursionError):
                raise ValueError("the record's value is not JSON") from None
            if repeated:
                raise ValueError(f"the record's value has {repeated} twice")
            self._decoded.append(decoded)
        return find_value(self._decoded[0], rest) if rest else self._decoded[0]


class RecordMapping(msgspec.Struct, frozen=True, kw_only=True):
    """How the records of one topic are mapped to jobs."""

    topic: str
    #: The action that a record requests.
    action: str
    #: The template of the job's external name; empty: the job has none.
    job: str
    #: The template of each field of the job.
    fields: Mapping[str, Template]

    def setting(self, field: str) -> str:
        """Return the name of a field in the settings."""
        return mapping_setting(self.topic, field)

    def render_text(self, field: str, template: str, record: Record) -> str:
        """Render a template as text. An optional template without a value in the record gives an empty text."""
        found = render(template, record, self.setting(field))
        if found is None:
            return ""
        text = format_value(found)
        if text is None:
            raise Invalid(self.setting(field), f"{template} of the record is not a text or a number")
        return text


def mapping_setting(topic: str, field: str) -> str:
    return f"ingest.topics.{topic}.{field}"


def check_template(template: object, setting: str) -> None:
    """Refuse a template that no record can fill."""
    if isinstance(template, dict):
        for value in template.values():
            check_template(value, setting)
    elif isinstance(template, list):
        for value in template:
            check_template(value, setting)
    elif isinstance(template, str):
        check_braces(template, setting, _HINT)
        for word in PLACEHOLDER.findall(template):
            path = word.removesuffix(_OPTIONAL)
            root, *names = path.split(".")
            if root not in _ROOTS or not all(names) or (root == "key" and names) or (root == "headers" and not names):
                raise Invalid(setting, f"{{{word}}} is not a part of a record", _HINT)
            if path != word and PLACEHOLDER.fullmatch(template) is None:
                raise Invalid(setting, f"{{{word}}} is optional, but stands beside other text", "{value.name?} alone")
    elif not isinstance(template, bool | int | float):
        raise Invalid(setting, f"{template!r:.80} is not a text, a number, true, false, a list or a table")


def render(template: Template, record: Record, setting: str) -> object:
    """Fill a template. A template that is a single placeholder becomes the value itself, of any type.

    Return None if the template is optional and the record has no such value. ``Invalid`` names a missing value.
    """
    if isinstance(template, dict):
        rendered = {name: render(value, record, setting) for name, value in template.items()}
        return {name: value for name, value in rendered.items() if value is not None or not _optional(template[name])}
    if isinstance(template, list):
        return [render(value, record, setting) for value in template]
    if not isinstance(template, str) or "{" not in template:
        return template
    whole = PLACEHOLDER.fullmatch(template)
    if whole is not None:
        return _find(whole[1], record, setting)
    return PLACEHOLDER.sub(lambda found: _find_text(found[1], record, setting), template)


def _find(word: str, record: Record, setting: str) -> object:
    path = word.removesuffix(_OPTIONAL)
    try:
        return record.find(path)
    except LookupError:
        if path != word:
            return None
        raise Invalid(setting, f"the record has no {path}") from None
    except ValueError as error:
        raise Invalid(setting, str(error)) from None


def _find_text(path: str, record: Record, setting: str) -> str:
    text = format_value(_find(path, record, setting))
    if text is None:
        raise Invalid(setting, f"{path} of the record is not a text or a number")
    return text


def _optional(template: Template) -> bool:
    return isinstance(template, str) and template.endswith(_OPTIONAL + "}")


def _decode_text(value: bytes | None, name: str) -> str:
    if value is None:
        raise LookupError(name)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the record's {name} is not UTF-8") from None


def is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None


def check_topic(topic: str, field: str) -> None:
    """Raise ``Invalid`` if this is not a valid topic name."""
    if not is_topic(topic):
        raise Invalid(field, f"{topic!r:.80} is not a name of a topic", "letters, digits, . _ and -")


_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")
