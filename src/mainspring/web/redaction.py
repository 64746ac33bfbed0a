"""Redaction: hides the values of configured fields in every payload, result and record of the dashboard."""

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import Any

import msgspec

#: Replaces hidden values. Real payloads are assumed not to have it, so that a form that submits it is detected.
MASK = "•••"


class Redactor:
    def __init__(self, names: Sequence[str]) -> None:
        """Compile the field names. A star stands for any characters, and case does not matter."""
        self._names = re.compile("|".join(translate(name.lower()) for name in names))

    def __call__(self, answer: Any) -> Any:
        """Return the answer with hidden values masked. An answer without such fields is returned as the same object."""
        match answer:
            case msgspec.Raw():
                return self._mask_raw(answer)
            case msgspec.Struct():
                changed = {}
                for field in answer.__struct_fields__:
                    value = getattr(answer, field)
                    if (shown := self(value)) is not value:
                        changed[field] = shown
                return msgspec.structs.replace(answer, **changed) if changed else answer
            case list() | tuple():
                items = [self(item) for item in answer]
                same = all(one is other for one, other in zip(items, answer, strict=True))
                return answer if same else type(answer)(items)
            case dict():
                values = {key: self(value) for key, value in answer.items()}
                return answer if all(values[key] is answer[key] for key in answer) else values
            case _:
                return answer

    def _mask_raw(self, raw: msgspec.Raw) -> msgspec.Raw:
        value = msgspec.json.decode(raw)
        shown = self._mask(value)
        return raw if shown == value else msgspec.Raw(msgspec.json.encode(shown))

    def _mask(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: MASK if item is not None and self._names.match(key.lower()) else self._mask(item)
                for key, item in value.items()
            }
        return [self._mask(item) for item in value] if isinstance(value, list) else value
