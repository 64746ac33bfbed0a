"""The result of a bulk action on jobs or runs."""

from mainspring.http.schemas.common import Wire


class BulkOut(Wire):
    action: str
    matched: int
    changed: int
    more: bool
    """More objects match than one request processes: send it again."""
    dry_run: bool
    sample: list[str]
    """The first hundred ids."""
