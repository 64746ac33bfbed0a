"""Labels: what a worker says of itself, and what a run asks of whoever shall run it.

A label is a word, ``name=value``. A run that requires some goes only to workers that have all of them. The runs of one
queue that require the same stand in a line of their own (a lane), so that nobody looks at what they cannot take. A
worker looks at the lanes of all subsets of its labels that somebody requires; their number bounds that.
"""

from collections.abc import Collection, Mapping

from mainspring.core.model.base.errors import Invalid

#: Of a worker, and of what a run requires.
MAX_LABELS = 8
MAX_PART = 63
#: The label that says where a worker is, and what stands between the places of an order of preference.
DATACENTER = "datacenter"
AND_THEN = ">"
MAX_PLACES = 16
MAX_PATIENCE = 24 * 3600
_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_OTHERS = _FIRST | frozenset("._/:-")
_PART = f"1 to {MAX_PART} of letters, digits and . _ / : -, a letter or a digit first"


def label_words(field: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Labels as they are kept: checked, as words, in order."""
    if not isinstance(labels, Mapping):
        raise Invalid(field, f"{labels!r:.40} is not a table of labels", 'for example {"gpu": "a100"}')
    for name, value in labels.items():
        _check_part(field, name)
        _check_value(field, name, value)
    words = tuple(sorted(f"{name}={value}" for name, value in labels.items()))
    check_labels_kept(field, words)
    return words


def labels_of(words: Collection[str]) -> dict[str, str]:
    """Names and values, as people see them."""
    return dict(word.split("=", 1) for word in words)


def read_label(field: str, text: str) -> tuple[str, str]:
    """``gpu=a100``, as it is typed."""
    name, equals, value = text.partition("=")
    if not equals:
        raise Invalid(field, f"{text!r:.40} is not a label", "name=value, for example gpu=a100")
    return _check_part(field, name), _check_value(field, name, value)


def check_labels_kept(field: str, words: tuple[str, ...]) -> None:
    """Words that are kept: there is one way to write a set of labels, so that equal sets are one lane."""
    if not isinstance(words, tuple) or len(words) > MAX_LABELS:
        raise Invalid(field, "are too many, or no tuple", f"at most {MAX_LABELS} labels")
    names = [read_label(field, word)[0] for word in words]
    if len(set(names)) < len(names) or list(words) != sorted(words):
        raise Invalid(field, "has a name twice, or is not in order")


def has_all(labels: Collection[str], requires: Collection[str]) -> bool:
    """Whether a worker with these labels may take a run that requires those."""
    return set(requires) <= set(labels)


def _check_value(field: str, name: str, value: str) -> str:
    if name == DATACENTER and isinstance(value, str) and AND_THEN in value:
        # An order of preference (``datacenters.Preference``): places, and at last a number of seconds.
        *places, patience = value.split(AND_THEN)
        if not 2 <= len(places) <= MAX_PLACES or len(set(places)) < len(places):
            raise Invalid(field, f"{value!r:.80} is no order of data centres", f"2 to {MAX_PLACES} of them, each once")
        for place in places:
            _check_part(field, place)
        digits = patience.removesuffix("s")
        if digits == patience or not (digits.isascii() and digits.isdecimal() and 0 < int(digits) <= MAX_PATIENCE):
            raise Invalid(field, f"{patience!r:.40} is no time to wait", f"1s to {MAX_PATIENCE}s")
        return value
    return _check_part(field, value)


def _check_part(field: str, part: str) -> str:
    good = isinstance(part, str) and 0 < len(part) <= MAX_PART and part[0] in _FIRST and _OTHERS.issuperset(part)
    if not good:
        raise Invalid(field, f"{part!r:.40} is not a name or a value of a label", _PART)
    return part
