"""What an action on many jobs or runs did."""

from mainspring.http.schemas.common import Wire


class BulkOut(Wire):
    action: str
    matched: int
    changed: int
    more: bool
    """There are more than one request deals with: ask again."""
    dry_run: bool
    sample: list[str]
    """The first hundred ids."""
