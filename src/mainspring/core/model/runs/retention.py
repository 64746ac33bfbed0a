"""Retention classes: how long an ended run is kept, as a job or a tenant chooses."""

from mainspring.core.model.base.checks import check_word
from mainspring.core.model.base.instant import Micros

STANDARD = "standard"
#: Stores save the index of a class, so a new class must come last.
CLASSES = (STANDARD, "short", "long", "audit")


def log_span(name: str, keep: Micros, span: Micros) -> Micros:
    """Return how long the external log of a run of this class is kept.

    ``keep`` is the retention of logs, ``span`` that of the runs of the class. In the longer classes a log lives at
    least as long as its run.
    """
    match name:
        case "short":
            return min(keep, span)
        case "standard":
            return keep
        case _:
            return max(keep, span)


def check_class(field: str, name: object) -> None:
    """Check a retention class. Empty selects the tenant's class, or the standard class if the tenant has none."""
    if name != "":
        check_word(field, name, CLASSES)
