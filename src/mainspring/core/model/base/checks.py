"""Checks of field values. Structs do not validate their arguments: an invalid value would be stored and break reads."""

from collections.abc import Collection

from mainspring.core.model.base.errors import Invalid


def check_whole(field: str, value: object, least: int, most: int, hint: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Invalid(field, f"{_shown(value)} is not a whole number", hint)
    if not least <= value <= most:
        raise Invalid(field, "is out of range", hint)


def check_word(field: str, value: object, words: Collection[str]) -> None:
    if not isinstance(value, str) or value not in words:
        raise Invalid(field, f"{_shown(value)} is not one of its words", ", ".join(words))


def check_kind(field: str, value: object, *kinds: type) -> None:
    # A bool is an int in Python, but not in JSON or in a database.
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise Invalid(field, f"{_shown(value)} is of the wrong type", " or ".join(kind.__name__ for kind in kinds))


def check_words(field: str, value: object, most: int) -> None:
    """Check a free text: printable characters that a database accepts; it may be empty."""
    if not isinstance(value, str) or len(value) > most or "\x00" in value or not value.isprintable():
        raise Invalid(field, f"{_shown(value)} is not a text", f"at most {most} printable characters")


def _shown(value: object) -> str:
    return f"{value!r:.40}"
