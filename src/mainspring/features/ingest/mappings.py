"""Mappings of other programs' records from the settings; their fields are those of ``POST /v1/jobs``."""

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.events.record_mapping import (
    Record,
    RecordMapping,
    Template,
    check_template,
    check_topic,
    mapping_setting,
    render,
)
from mainspring.core.model.limits.key_template import format_value
from mainspring.core.model.runs.names import JOB_TAG
from mainspring.http.problems import RequestFieldError, decode
from mainspring.http.schemas.jobs import JobFields, JobIn, JobPatch

#: The action by the word in a record.
ACTIONS = {
    "": "create",
    "create": "create",
    "created": "create",
    "update": "update",
    "updated": "update",
    "cancel": "cancel",
    "cancelled": "cancel",
    "canceled": "cancel",
    "delete": "cancel",
    "deleted": "cancel",
}
_ACTION_HINT = "create, update, cancel or delete, or a template such as {value.action}"
_FIELDS: Mapping[str, str] = dict(zip(JobIn.__struct_fields__, JobIn.__struct_encode_fields__, strict=True))
_ATTRIBUTES = {written: name for name, written in _FIELDS.items()}
_WORDS = ("action", "job", *_FIELDS)
_HINT = 'for example {"encoding-jobs": {"task": "encode", "ordering_key": "{key}"}}'


def read_mappings(topics: Mapping[str, object]) -> dict[str, RecordMapping]:
    """Read the mappings by topic. ``Invalid`` names the setting that is wrong."""
    return {topic: _read_mapping(topic, table) for topic, table in topics.items()}


def build_job(mapping: RecordMapping, record: Record) -> JobIn:
    """Build the job that a record asks for."""
    fields = _render_fields(mapping, record)
    if "payload" not in mapping.fields:
        fields["payload"] = render("{value}", record, mapping.setting("payload"))
    if name := mapping.render_text("job", mapping.job, record):
        tags = fields.get("tags", [])
        fields["tags"] = [*(tags if isinstance(tags, list) else [tags]), JOB_TAG + name]
    job: JobIn = _decode_fields(mapping, fields, JobIn, _job_decoder)
    return job


def build_patch(mapping: RecordMapping, record: Record) -> JobPatch:
    """Build the update that a record asks for."""
    fields = {
        name: value for name, value in _render_fields(mapping, record).items() if _ATTRIBUTES[name] in _CHANGEABLE
    }
    changed: JobPatch = _decode_fields(mapping, fields, JobPatch, _patch_decoder)
    return changed


def read_tenant(mapping: RecordMapping, record: Record) -> str | None:
    """Return the tenant that a record names, or None."""
    template = mapping.fields.get("tenant", "")
    return mapping.render_text("tenant", template, record) or None if isinstance(template, str) else None


def read_action(mapping: RecordMapping, record: Record) -> str:
    word = mapping.render_text("action", mapping.action, record)
    try:
        return ACTIONS[word.lower()]
    except KeyError:
        raise RequestFieldError(mapping.setting("action"), f"{word!r:.40} is not an action", _ACTION_HINT) from None


def _read_mapping(topic: str, table: object) -> RecordMapping:
    check_topic(topic, f"ingest.topics.{topic}")
    if not isinstance(table, dict):
        raise Invalid(f"ingest.topics.{topic}", f"{table!r:.80} is not a table", _HINT)
    for name, template in table.items():
        if name not in _WORDS:
            close = difflib.get_close_matches(name, _WORDS, 1)
            raise Invalid(
                mapping_setting(topic, name),
                "is not a field of a mapping",
                f"did you mean {close[0]}?" if close else ", ".join(_WORDS),
            )
        check_template(template, mapping_setting(topic, name))
    action, job = (_check_text(topic, name, table.get(name, "")) for name in ("action", "job"))
    mapping = RecordMapping(
        topic=topic,
        action=action,
        job=job,
        fields={name: template for name, template in table.items() if name in _FIELDS},
    )
    _check_mapping(mapping)
    return mapping


def _check_mapping(mapping: RecordMapping) -> None:
    if "{" not in mapping.action and mapping.action.lower() not in ACTIONS:
        raise Invalid(mapping.setting("action"), f"{mapping.action!r} is not an action", _ACTION_HINT)
    if mapping.action and not mapping.job:
        raise Invalid(mapping.setting("job"), "is missing", "the job that the action is for, such as {value.job_id}")
    if "task" not in mapping.fields and ("{" in mapping.action or ACTIONS[mapping.action.lower()] == "create"):
        raise Invalid(mapping.setting("task"), "is missing", "the name of a task, or a template")
    # An error in a fixed value affects every record: reject it when the settings are read.
    fixed = {
        _FIELDS[name]: _convert_number(name, value)
        for name, value in mapping.fields.items()
        if not _has_placeholder(value)
    }
    _decode_fields(mapping, fixed, JobIn, _job_decoder)


def _check_text(topic: str, name: str, template: object) -> str:
    if not isinstance(template, str):
        raise Invalid(mapping_setting(topic, name), f"{template!r:.80} is not a text")
    return template


def _has_placeholder(template: Template) -> bool:
    if isinstance(template, dict):
        return any(map(_has_placeholder, template.values()))
    if isinstance(template, list):
        return any(map(_has_placeholder, template))
    return isinstance(template, str) and "{" in template


def _render_fields(mapping: RecordMapping, record: Record) -> dict[str, object]:
    """Fill the fields of a request, by their names over the wire, without optional ones that the record lacks."""
    found: dict[str, object] = {}
    for name, template in mapping.fields.items():
        value = render(template, record, mapping.setting(name))
        if value is not None or not (isinstance(template, str) and template.endswith("?}")):
            found[_FIELDS[name]] = _convert_number(name, value)
    return found


def _convert_number(name: str, value: object) -> object:
    """Convert numbers to text in fields that only take text, such as a key."""
    if name in _TEXT_FIELDS and value is not None and not isinstance(value, str):
        return format_value(value) or value
    return value


def _decode_fields(
    mapping: RecordMapping, fields: Mapping[str, object], kind: Any, decoder: "msgspec.json.Decoder[Any]"
) -> Any:
    try:
        return decode(msgspec.json.encode(fields), kind, decoder)
    except Invalid as error:
        first, _, rest = error.field.partition(".")
        name = _ATTRIBUTES.get(first, first)
        setting = mapping.setting(f"{name}.{rest}" if rest else name)
        raise RequestFieldError(setting, error.reason, error.hint) from None


def _list_text_fields() -> frozenset[str]:
    """Return the names of the fields that only take text."""
    found = set()
    info = inspect.type_info(JobIn)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        kinds = {type(_unwrap(one)) for one in types} - {inspect.NoneType}
        if kinds == {inspect.StrType}:
            found.add(field.name)
    return frozenset(found)


def _unwrap(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


_TEXT_FIELDS = _list_text_fields()
_CHANGEABLE = frozenset(JobFields.__struct_fields__)
#: Lax, because other programs write numbers as text.
_job_decoder: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder(JobIn, strict=False)
_patch_decoder: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder(JobPatch, strict=False)
