"""Templates over the key, the headers and the value of a record of another program."""

import msgspec
import pytest

from mainspring.config.loading import load
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.events.record_mapping import Record, RecordMapping
from mainspring.features.ingest.mappings import build_job, build_patch, read_action, read_mappings

VALUE = {"jobId": "e-1", "videoId": 7, "resolution": "4K", "priority": 1, "formats": ["a", "b"], "note": None}
#: Java's EncodingJob with its usual headers.
RECORD = Record(b"video-7", {"__TypeId__": b"EncodingJob", "trace.id": b"t", "empty": None}, msgspec.json.encode(VALUE))


def a_mapping(**fields: object) -> RecordMapping:
    return read_mappings({"encoding-jobs": {"task": "encode"} | fields})["encoding-jobs"]


def payload(template: object, record: Record = RECORD) -> object:
    raw = build_job(a_mapping(payload=template), record).payload
    assert isinstance(raw, msgspec.Raw)
    return msgspec.json.decode(raw)


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{value}", VALUE),
        ("{value.formats}", ["a", "b"]),
        ("{value.formats.1}", "b"),
        ("{value.videoId}", 7),
        ("{value.note}", None),
        ("{value.nothing?}", None),
        ("{key}", "video-7"),
        ("{headers.__TypeId__}", "EncodingJob"),
        ("{headers.trace.id}", "t"),
        ("{key}/{value.videoId}", "video-7/7"),
        ({"id": "{value.videoId}", "fixed": [1, True, "{key}"]}, {"id": 7, "fixed": [1, True, "video-7"]}),
        ({"id": "{value.videoId}", "left out": "{value.nothing?}", "null": "{value.note}"}, {"id": 7, "null": None}),
        ("as it is", "as it is"),
    ],
)
def test_a_template_is_filled_from_the_record(template: object, found: object) -> None:
    if template == "{value.nothing?}":
        assert build_job(a_mapping(payload=template), RECORD).payload is msgspec.UNSET
    else:
        assert payload(template) == found


def test_the_payload_is_the_whole_value_by_default() -> None:
    raw = build_job(a_mapping(), RECORD).payload
    assert isinstance(raw, msgspec.Raw)
    assert msgspec.json.decode(raw) == VALUE


def test_a_number_becomes_text_where_a_field_is_a_text_and_text_a_number_where_it_is_a_number() -> None:
    record = Record(None, {}, b'{"video": 7, "priority": "2", "retries": "3", "every": 90}')
    fields = build_job(
        a_mapping(ordering_key="{value.video}", priority="{value.priority}", max_retries="{value.retries}"), record
    )
    assert (fields.ordering_key, fields.priority, fields.max_retries) == ("7", 2, 3)


def test_optional_fields_are_left_out_of_the_job() -> None:
    fields = build_job(a_mapping(queue="{value.queue?}", name="{value.note?}"), RECORD)
    assert (fields.queue, fields.name) == (msgspec.UNSET, msgspec.UNSET)


def test_the_name_that_others_have_for_a_job_becomes_a_tag() -> None:
    fields = build_job(a_mapping(job="{value.jobId}", tags=["video"]), RECORD)
    assert fields.tags == ("video", "job:e-1")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{value.nothing}", "the record has no value.nothing"),
        ("{value.formats.2}", "the record has no value.formats.2"),
        ("{headers.nothing}", "the record has no headers.nothing"),
        ("{headers.empty}", "the record has no headers.empty"),
        ("{value.formats}", "array"),
    ],
)
def test_a_record_without_a_value_is_refused_by_the_name_of_the_setting(template: str, words: str) -> None:
    with pytest.raises(Invalid, match=words) as caught:
        build_job(a_mapping(ordering_key=template), RECORD)
    assert caught.value.field == "ingest.topics.encoding-jobs.ordering_key"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (Record(None, {}, b"{}"), "the record has no key"),
        (Record(b"\xff", {}, b"{}"), "the record's key is not UTF-8"),
    ],
)
def test_a_record_whose_key_cannot_be_used_is_refused(record: Record, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        build_job(a_mapping(ordering_key="{key}"), record)


@pytest.mark.parametrize("value", [b"", b"\x00\x01avro", b"{", b"\xff"])
def test_a_value_that_is_not_json_is_refused_only_if_it_is_used(value: bytes) -> None:
    with pytest.raises(Invalid, match="value is not JSON"):
        build_job(a_mapping(), Record(b"k", {}, value))
    assert payload({"key": "{key}"}, Record(b"k", {}, value)) == {"key": "k"}


def test_an_update_changes_only_fields_that_are_mapped() -> None:
    mapping = a_mapping(action="update", job="{value.jobId}", max_retries=5, idempotency_key="{value.jobId}")
    patch = build_patch(mapping, RECORD)
    assert (patch.max_retries, patch.task, patch.payload) == (5, "encode", msgspec.UNSET)


@pytest.mark.parametrize(
    ("word", "action"), [(None, "create"), ("created", "create"), ("UPDATE", "update"), ("deleted", "cancel")]
)
def test_a_record_says_what_is_done_with_its_job(word: str | None, action: str) -> None:
    mapping = a_mapping(action="{value.action?}", job="{key}")
    assert read_action(mapping, Record(b"k", {}, msgspec.json.encode({"action": word}))) == action


def test_an_unknown_action_of_a_record_is_refused() -> None:
    mapping = a_mapping(action="{value.action}", job="{key}")
    with pytest.raises(Invalid, match="'explode' is not an action"):
        read_action(mapping, Record(b"k", {}, b'{"action": "explode"}'))


@pytest.mark.parametrize(
    ("table", "setting", "words"),
    [
        ({"task": "t", "ordering": "x"}, "ordering", "did you mean ordering_key?"),
        ({"task": "t", "orderingKey": "x"}, "orderingKey", "did you mean ordering_key?"),
        ({}, "task", "is missing"),
        ({"task": "{value.a"}, "task", "without its partner"),
        ({"task": "t", "queue": "{payload.a}"}, "queue", "is not a part of a record"),
        ({"task": "t", "queue": "{value..a}"}, "queue", "is not a part of a record"),
        ({"task": "t", "queue": "{headers}"}, "queue", "is not a part of a record"),
        ({"task": "t", "queue": "q-{value.a?}"}, "queue", "stands beside other text"),
        ({"task": "t", "payload": {"a": ["{nothing}"]}}, "payload", "is not a part of a record"),
        ({"task": "t", "priority": 11}, "priority", "10"),
        ({"task": "t", "priority": "urgent"}, "priority", "expected"),
        ({"task": "t", "retry": {"backof": "fixed"}}, "retry.backof", "is no field"),
        ({"task": "t", "action": "explode", "job": "{key}"}, "action", "is not an action"),
        ({"task": "t", "action": "cancel"}, "job", "is missing"),
        ({"task": "t", "action": 1}, "action", "is not a text"),
    ],
)
def test_a_mistake_in_a_mapping_is_one_error_that_names_the_setting(
    table: dict[str, object], setting: str, words: str
) -> None:
    flags = {"ingest.kafka": "kafka://host:9092", "ingest.topics": {"jobs": table}}
    with pytest.raises(Invalid) as caught:
        load(flags, {})
    assert caught.value.field == f"ingest.topics.jobs.{setting}"
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"ingest.topics": {"jobs": {"task": "t"}}}, "ingest.topics"),
        ({"ingest.kafka": "kafka://host/jobs", "ingest.topics": {"jobs": {"task": "t"}}}, "ingest.topics.jobs"),
        ({"ingest.kafka": "kafka://host", "ingest.topics": {"a b": {"task": "t"}}}, "ingest.topics.a b"),
        ({"ingest.kafka": "kafka://host"}, "ingest.kafka"),
        (
            {"ingest.kafka": "kafka://host", "ingest.topics": {"a": {"task": "t"}}, "api.submit_buffer": "kafka"},
            "api.submit_buffer",
        ),
    ],
)
def test_mapped_topics_need_a_server_and_a_topic_of_their_own(flags: dict[str, object], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        load(flags, {})
    assert caught.value.field == field


def test_mappings_are_read_from_the_environment_as_json() -> None:
    environment = {
        "MAINSPRING_INGEST_KAFKA": "kafka://host:9092",
        "MAINSPRING_INGEST_TOPICS": '{"jobs": {"task": "t", "payload": {"a": "{key}"}}}',
    }
    assert load(None, environment).ingest.topics == {"jobs": {"task": "t", "payload": {"a": "{key}"}}}
    for wrong in ("jobs=t", '["a"]', '{"a": 1}'):
        with pytest.raises(Invalid, match="MAINSPRING_INGEST_TOPICS"):
            load(None, environment | {"MAINSPRING_INGEST_TOPICS": wrong})
