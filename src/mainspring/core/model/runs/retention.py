"""Classes of retention: how long what has ended is kept, as a job or a tenant chooses."""

from mainspring.core.model.base.checks import check_word
from mainspring.core.model.base.instant import Micros

STANDARD = "standard"
#: In the order of their numbers, which stores write down: a new one comes last.
CLASSES = (STANDARD, "short", "long", "audit")


def log_span(name: str, keep: Micros, span: Micros) -> Micros:
    """How long the log of a run of a class is kept outside the store. ``keep``: what is said of logs; ``span``: how
    long the class keeps its runs. A log of the longer classes does not go before its run."""
    match name:
        case "short":
            return min(keep, span)
        case "standard":
            return keep
        case _:
            return max(keep, span)


def check_class(field: str, name: object) -> None:
    """Nothing chosen is an empty text: then the tenant's class counts, and without one the standard."""
    if name != "":
        check_word(field, name, CLASSES)
