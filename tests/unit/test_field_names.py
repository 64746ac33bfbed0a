"""Other names of JSON fields, and what was meant by unknown ones."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import pytest

from mainspring.core.model.base.field_names import (
    Repeated,
    Unknown,
    explain_names,
    explain_unknown,
    path_as_written,
    suggest,
    translate,
)
from mainspring.http.schemas.jobs import BroadcastIn, JobFields, JobIn, JobPatch


class Wheel(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    tire_size: int = 0


class Car(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    OTHER_NAMES: ClassVar[Mapping[str, tuple[str, ...]]] = {"top_speed": ("max_speed", "v")}
    top_speed: int = 0
    spare_wheel: Wheel | str | None = None
    wheels: tuple[Wheel, ...] = ()
    by_name: dict[str, Wheel] = {}
    extra: msgspec.Raw = msgspec.Raw(b"")


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ('{"topSpeed": 1}', '{"topSpeed":1}'),
        ('{"top_speed": 1}', '{"topSpeed":1}'),
        ('{"max_speed": 1}', '{"topSpeed":1}'),
        ('{"maxSpeed": 1}', '{"topSpeed":1}'),
        ('{"v": 1}', '{"topSpeed":1}'),
        ('{"spare_wheel": {"tire_size": 3}}', '{"spareWheel":{"tireSize":3}}'),
        ('{"spare_wheel": "tire_size"}', '{"spareWheel":"tire_size"}'),
        ('{"wheels": [{"tire_size": 3}, {"tireSize": 4}]}', '{"wheels":[{"tireSize":3},{"tireSize":4}]}'),
        ('{"by_name": {"front_left": {"tire_size": 3}}}', '{"byName":{"front_left":{"tireSize":3}}}'),
        # Raw parts are unchanged: names, numbers and spaces.
        ('{"v": 1, "extra": {"top_speed": 1.0, "v": 1e400}}', '{"topSpeed":1,"extra":{"top_speed": 1.0, "v": 1e400}}'),
        ('[{"v": 1}]', '[{"v": 1}]'),
    ],
)
def test_known_fields_get_their_own_names(given: str, known: str) -> None:
    found = translate(given.encode(), Car)
    assert found.data.decode() == known
    assert not found.unknown


def test_paths_of_other_names_lead_back_to_what_was_written() -> None:
    found = translate(b'{"max_speed": 1, "spare_wheel": {"tire_size": 3}, "wheels": [{"tire_size": 3}]}', Car)
    assert path_as_written("topSpeed", found.written) == "max_speed"
    assert path_as_written("spareWheel.tireSize", found.written) == "spare_wheel.tire_size"
    assert path_as_written("spareWheel.color", found.written) == "spare_wheel.color"
    assert path_as_written("wheels[0].tireSize", found.written) == "wheels[0].tire_size"
    assert path_as_written("byName", found.written) == "byName"


def test_two_names_of_one_field_are_found_with_both_paths() -> None:
    found = translate(b'{"v": 1, "max_speed": 2, "wheels": [{}, {"tire_size": 1, "tireSize": 1}]}', Car)
    assert found.repeated == [Repeated("max_speed", "v"), Repeated("wheels[1].tireSize", "wheels[1].tire_size")]


def test_one_error_names_fields_that_are_repeated_and_fields_that_are_unknown() -> None:
    repeated = [Repeated("retries", "maxRetries"), Repeated("type", "task")]
    assert str(explain_names(repeated, [])) == (
        "retries: is another name of maxRetries, which is given as well; type is another name of task "
        "(keep one of them)"
    )
    assert str(explain_names(repeated[:1], [Unknown("tagz", "tags"), Unknown("a", "")])) == (
        "retries: is another name of maxRetries, which is given as well; tagz is no field of this, nor is a "
        "(keep one of them; did you mean `tags` for tagz?)"
    )
    assert str(explain_names([], [Unknown("a", "")])) == str(explain_unknown([Unknown("a", "")]))


def test_unknown_fields_are_found_at_every_depth() -> None:
    found = translate(b'{"topSped": 1, "wheels": [{"tyre": 1}], "by_name": {"a": {"tireSise": 1}}, "x\\n": 1}', Car)
    assert found.unknown == [
        Unknown("topSped", "topSpeed"),
        Unknown("wheels[0].tyre", ""),
        Unknown("by_name.a.tireSise", "tireSize"),
        Unknown(r"'x\n'", ""),
    ]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cronExpresion", "cronExpression"),
        ("CRON_EXPRESSION", "cronExpression"),
        ("cron", "cronExpression"),
        ("timeoutSeconds", "timeout"),
        ("priorty", "priority"),
        ("scheduledTime", "scheduleTime"),
        ("speed", ""),
        ("x", ""),
    ],
)
def test_suggests_the_field_that_was_meant(name: str, meant: str) -> None:
    assert suggest(name, JobIn.__struct_encode_fields__) == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("executAt", "executeAt"),
        ("typ", "type"),
        ("jobTyp", "jobType"),
        ("retires", "retries"),
        ("SCHEDULE_TIME", "scheduleTime"),
        ("max_retry", "maxRetries"),
    ],
)
def test_other_names_are_suggested_too(name: str, meant: str) -> None:
    assert [one.meant for one in translate(f'{{"{name}": 1}}'.encode(), JobIn).unknown] == [meant]


@pytest.mark.parametrize(
    ("unknown", "words"),
    [
        ([Unknown("a", "")], "a: is no field of this (check its spelling)"),
        ([Unknown("a", "b")], "a: is no field of this (did you mean `b`?)"),
        ([Unknown("a", "b"), Unknown("c", "")], "a: is no field of this, nor is c (did you mean `b` for a?)"),
        (
            [Unknown("a", "b"), Unknown("c", "d"), Unknown("e", "")],
            "a: is no field of this, nor are c and e (did you mean `b` for a, `d` for c?)",
        ),
        ([Unknown("a", ""), Unknown("c", "")], "a: is no field of this, nor is c (check their spelling)"),
    ],
)
def test_one_error_names_every_unknown_field(unknown: list[Unknown], words: str) -> None:
    assert str(explain_unknown(unknown)) == words


def test_an_error_names_only_the_first_of_very_many() -> None:
    assert "nor are 1, 2" in (words := str(explain_unknown([Unknown(str(number), "") for number in range(1000)])))
    assert "and 980 more" in words
    assert len(words) < 200


@pytest.mark.parametrize("kind", [JobFields, JobIn, JobPatch, BroadcastIn])
def test_no_other_name_of_a_job_field_is_a_field_itself(kind: type[JobFields]) -> None:
    own = {*kind.__struct_fields__, *kind.__struct_encode_fields__}
    others = [name for names in kind.OTHER_NAMES.values() for name in names]
    assert not own.intersection(others)
    assert len(others) == len(set(others))
    assert set(kind.OTHER_NAMES) <= set(kind.__struct_fields__)
