"""Labels: the properties of a worker, and the properties that a run requires of its worker.

A label is a word, ``name=value``. A run that requires labels is claimed only by workers that have all of them. The runs
of one queue that require the same label set are stored apart, so that no worker reads runs that it cannot take. A
worker reads all label sets in use that are subsets of its own labels; their number bounds the cost.
"""

from collections.abc import Collection, Mapping

from mainspring.core.model.base.errors import Invalid

#: The maximum number of labels of a worker, and of required labels of a run.
MAX_LABELS = 8
MAX_PART = 63
#: The label for a worker's data center, and the separator in an order of preference.
DATACENTER = "datacenter"
AND_THEN = ">"
MAX_PREFERRED = 16
MAX_PATIENCE = 24 * 3600
_FIRST = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_OTHERS = _FIRST | frozenset("._/:-")
_PART = f"1 to {MAX_PART} of letters, digits and . _ / : -, a letter or a digit first"


def label_words(field: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Check labels and return them as sorted words, the form in which they are stored."""
    if not isinstance(labels, Mapping):
        raise Invalid(field, f"{labels!r:.40} is not a table of labels", 'for example {"gpu": "a100"}')
    for name, value in labels.items():
        _check_part(field, name)
        _check_value(field, name, value)
    words = tuple(sorted(f"{name}={value}" for name, value in labels.items()))
    check_labels_kept(field, words)
    return words


def split_labels(words: Collection[str]) -> dict[str, str]:
    """Return stored labels as names and values."""
    return dict(word.split("=", 1) for word in words)


def read_label(field: str, text: str) -> tuple[str, str]:
    """Parse a label as typed, such as ``gpu=a100``."""
    name, equals, value = text.partition("=")
    if not equals:
        raise Invalid(field, f"{text!r:.40} is not a label", "name=value, for example gpu=a100")
    return _check_part(field, name), _check_value(field, name, value)


def check_labels_kept(field: str, words: tuple[str, ...]) -> None:
    """Check stored labels. Their form is canonical, so that equal sets of labels compare equal."""
    if not isinstance(words, tuple) or len(words) > MAX_LABELS:
        raise Invalid(field, "are too many, or no tuple", f"at most {MAX_LABELS} labels")
    names = [read_label(field, word)[0] for word in words]
    if len(set(names)) < len(names) or list(words) != sorted(words):
        raise Invalid(field, "has a name twice, or is not in order")


def has_all(labels: Collection[str], requires: Collection[str]) -> bool:
    """Return whether a worker with these labels may take a run that requires those."""
    return set(requires) <= set(labels)


def _check_value(field: str, name: str, value: str) -> str:
    if name == DATACENTER and isinstance(value, str) and AND_THEN in value:
        # An order of preference (``datacenters.Preference``): data centers, and finally a number of seconds.
        *datacenters, patience = value.split(AND_THEN)
        if not 2 <= len(datacenters) <= MAX_PREFERRED or len(set(datacenters)) < len(datacenters):
            raise Invalid(
                field, f"{value!r:.80} is no order of data centers", f"2 to {MAX_PREFERRED} of them, each once"
            )
        for datacenter in datacenters:
            _check_part(field, datacenter)
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
