"""Live lists whose rows do not move: a refresh updates the shown rows and counts the new ones.

The script sends the ids of the shown rows with every refresh. Without a script there is no refresh.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec

from mainspring.http.operation import Handler
from mainspring.web.page import Visit

T = TypeVar("T")
#: The request header with the ids of the shown rows, percent-encoded and separated by commas.
HEADER = "mainspring-rows"
_MAX_ROWS = 100


class NewItemCount(msgspec.Struct, frozen=True):
    """How many items a list has that are not shown yet."""

    count: int = 0
    #: Whether there may be more than were counted.
    more: bool = False


class LivePage(NamedTuple):
    """A page of a list as the API answered it, and the items to show."""

    page: Any
    items: Sequence[Any]
    fresh: NewItemCount


def get_shown_rows(visit: Visit[Any]) -> list[str]:
    """Return the ids of the rows that the viewer sees. Empty if the request is not a refresh."""
    text = visit.headers.get(HEADER, "")
    return [unquote(word) for word in text.split(",") if word][:_MAX_ROWS]


async def read_live_list(
    visit: Visit[Any],
    operation: "Handler[Any, Any] | str",
    query: Mapping[str, object],
    identify: Callable[[Any], str],
    *,
    by_id: "Handler[Any, Any] | str | None" = None,
) -> LivePage:
    """Read a list that is ordered by id, newest first.

    Shown rows are read by their ids, so they keep their rows with their new state, even if they no longer match the
    filter. ``by_id`` is the operation that takes ``ids``, if it is another one.
    """
    shown = get_shown_rows(visit)
    if not shown:
        page = await visit.ask(operation, query=query)
        return LivePage(page, page.items, NewItemCount())
    page, known = await asyncio.gather(
        visit.ask(operation, query=query), visit.ask(by_id or operation, query={"ids": ",".join(shown)})
    )
    if not known.items:
        # None of the rows is stored any more.
        return LivePage(page, page.items, NewItemCount())
    return LivePage(page, known.items, count_fresh([identify(item) for item in page.items], shown, min(shown)))


def count_fresh(found: Sequence[str], shown: Sequence[str], last: str) -> NewItemCount:
    """Count ids that are not shown. Those below the last shown row are on the next page."""
    known = frozenset(shown)
    count = sum(identifier not in known and identifier > last for identifier in found)
    return NewItemCount(count, more=0 < count == len(found))


def keep_order(visit: Visit[Any], items: Sequence[T], identify: Callable[[T], str]) -> list[T]:
    """Sort items in the order of the shown rows, with new ones at the end. Without shown rows, the order stays."""
    positions = {identifier: position for position, identifier in enumerate(get_shown_rows(visit))}
    return sorted(items, key=lambda item: positions.get(identify(item), len(positions)))
