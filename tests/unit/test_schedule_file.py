"""Schedule files: round trips, and errors that name the schedule or the line."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import HOUR, SECOND
from mainspring.core.model.schedules.job import Overlap
from mainspring.core.model.schedules.schedule import CronSchedule, Interval
from mainspring.core.runtime.plain_yaml import read_yaml, write_yaml
from mainspring.features.schedules.file import Entry, check_entry, format_file, read_file, read_text

YAML = """\
# ours
schedules:
- name: nightly
  task: report
  cronExpression: 30 2 * * *
  timezone: Europe/Paris
  payload: {day: 2026-01-01, on: no, code: 010, at: 12:30, pi: 3.5, none: ~}
  queue: reports
  priority: 2
  maxRetries: 5
  retry: {backoff: fixed, firstDelay: 10s}
  timeout: 2h
  overlap: skip
  catchUp: {mode: all, maxAge: 6h}
  owner: ada
  tags: [finance]
- name: poll
  task: poll
  every: 30s
"""


def test_a_yaml_file_is_parsed_into_schedules() -> None:
    (nightly, payload), (poll, nothing) = read_text(YAML)
    assert nightly.schedule == CronSchedule("30 2 * * *", "Europe/Paris")
    assert (nightly.queue, nightly.priority, nightly.owner, nightly.tags) == ("reports", 2, "ada", ("finance",))
    assert (nightly.policy.retry.max_retries, nightly.policy.retry.first_delay) == (5, 10 * SECOND)
    assert nightly.policy.timeout == 2 * HOUR
    assert nightly.overlap is Overlap.SKIP
    assert nightly.catch_up.max_age == 6 * HOUR
    assert json.loads(payload) == {"day": "2026-01-01", "on": "no", "code": 10, "at": "12:30", "pi": 3.5, "none": None}
    assert poll.schedule == Interval(30 * SECOND)
    assert nothing == b"null"


def test_the_suffix_determines_the_format(tmp_path: Path) -> None:
    entry = {"name": "a", "task": "t", "every": "1m", "payload": {"n": 1}}
    texts = {
        "x.json": json.dumps({"schedules": [entry]}),
        "x.toml": '[[schedules]]\nname = "a"\ntask = "t"\nevery = "1m"\npayload = {n = 1}\n',
        "x.yml": format_file([Entry(entry)]),
        "x.YAML": "\ufeff" + format_file([Entry(entry)]),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert [check_entry(msgspec.json.encode(fields)) for fields in read_file(tmp_path / name)] == [
            check_entry(entry)
        ], name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f: has no list of schedules (begin the file with schedules:)"),
        ("- a", "f: has no list of schedules (begin the file with schedules:)"),
        ("schedules: 3", "f: schedules: expected 'array', got 'int'"),
        ("jobs: []", "f: jobs: is no field of this (check its spelling)"),
        ("schedules: [3]", "f, schedule 1: body: expected 'object', got 'int'"),
        ("schedules:\n- {name: a, taks: t}", "f, schedule 1 (a): taks: is no field of this (did you mean `task`?)"),
        ("schedules:\n- {name: a, task: t}", "f, schedule 1 (a): cronExpression: is missing, and so is every"),
        ("schedules:\n- {task: t, every: 1m}", "f, schedule 1: name: is missing"),
        ("schedules:\n- {name: a, every: 1m}", "f, schedule 1 (a): task: is missing"),
        ("schedules:\n- {name: a, task: t, every: soon}", "f, schedule 1 (a): every: "),
        ("schedules:\n- {name: a, task: t, every: 1ms}", "f, schedule 1 (a): every: is 1ms (at least 1s)"),
        (
            "schedules:\n- {name: a, task: t, cronExpression: 61 * * * *}",
            "f, schedule 1 (a): cronExpression: minute: 61 is out of range (0 to 59)",
        ),
        ("schedules:\n- {name: a, task: t, every: 1m, priority: 0}", "f, schedule 1 (a): priority: "),
        ("schedules:\n- {name: a, task: t, every: 1m, retry: {x: 1}}", "f, schedule 1 (a): retry.x: is no field"),
        ("schedules:\n- {name: a, task: t, every: 1m, delay: 1m}", "f, schedule 1 (a): delay: is for one-off jobs"),
        (
            "schedules:\n- {name: a, task: t, every: 1m}\n- {name: a, task: t, every: 1m}",
            "f, schedule 2 (a): name: is also the name of schedule 1",
        ),
        ("schedules:\n- {name: a, name: b}", "f, line 2: 'name' is there twice"),
        ("schedules:\n- &x {name: a}\n- *x", "f, line 3: anchors and aliases are not read"),
        ("schedules: [", "f, line 1: "),
        ("schedules: !!python/object:os.system {}", "f, line 1: could not determine a constructor"),
        ("schedules:\n- {[1]: 2}", "f, line 2: a key is no plain word"),
        ("a\x00", "f: is not YAML"),
        ("[" * 100_000, "f: is nested too deeply"),
        ("schedules: []\n---\nschedules: []", "f: has 2 documents"),
    ],
)
def test_an_error_names_the_schedule_or_the_line(text: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_text(text, ".yaml", "f")
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(("suffix", "text"), [(".json", "{"), (".toml", "="), (".ini", "")])
def test_invalid_json_invalid_toml_and_unknown_formats_are_rejected(suffix: str, text: str) -> None:
    with pytest.raises(Invalid, match=r"^f: (is not|\.ini is not a format)"):
        read_text(text, suffix, "f")


def test_an_unreadable_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="cannot be read: No such file"):
        read_file(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"\xe9")
    with pytest.raises(Invalid, match="is not UTF-8"):
        read_file(tmp_path / "latin.yaml")


odd = ["yes", "no", "on", "~", "null", "0o14", "010", "1e3", "1_000", "12:30", "2026-01-01", ".5", "=", "<<"]
words = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from([*odd, "a\n b\n", " x"])
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_any_payload_is_read_back_as_it_was_written(payload: Any) -> None:
    entry = {"name": "a", "task": "t", "every": "1m", "payload": payload}
    text = format_file([Entry(entry, ["a comment\nof: two lines"])], ["heading"])
    assert read_text(text) == [check_entry(entry)]


@given(values)
def test_written_yaml_is_read_the_same_by_this_reader_and_by_pyyaml(value: Any) -> None:
    text = write_yaml(value)
    assert read_yaml(text, "x") == [value]
    assert yaml.safe_load(text) == value


@given(st.text(max_size=80) | st.text("[]{}:,&*!|>'\"#%-\n ab1", max_size=80))
def test_any_text_is_parsed_or_rejected_as_invalid(text: str) -> None:
    with suppress(Invalid):
        read_text(text)
