"""Classes of retention: how long what has ended is kept, as a job or a tenant chooses."""

from mainspring.domain.checks import check_word

STANDARD = "standard"
#: In the order of their numbers, which stores write down: a new one comes last.
CLASSES = (STANDARD, "short", "long", "audit")


def check_class(field: str, name: object) -> None:
    """Nothing chosen is an empty text: then the tenant's class counts, and without one the standard."""
    if name != "":
        check_word(field, name, CLASSES)
