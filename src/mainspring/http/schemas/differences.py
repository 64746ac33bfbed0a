"""The differences between two versions of a job."""

import msgspec
from msgspec import UNSET, UnsetType

from mainspring.http.schemas.common import Wire
from mainspring.http.schemas.jobs import JobFields

#: For larger values a change has only the sizes.
_LARGEST_SHOWN = 4_096


class Change(Wire):
    """The values of a field before and after. For values above 4 KiB only the sizes."""

    before: msgspec.Raw | UnsetType = UNSET
    after: msgspec.Raw | UnsetType = UNSET
    bytes_before: int | UnsetType = UNSET
    bytes_after: int | UnsetType = UNSET


def list_differences(before: JobFields, after: JobFields) -> dict[str, Change]:
    """Return the changed fields, with values in the form of a request."""
    old = msgspec.json.decode(msgspec.json.encode(before), type=dict[str, msgspec.Raw])
    new = msgspec.json.decode(msgspec.json.encode(after), type=dict[str, msgspec.Raw])
    null = msgspec.Raw(b"null")
    changes = {}
    for name in sorted(old.keys() | new.keys()):
        was, became = old.get(name, null), new.get(name, null)
        sizes = len(bytes(was)), len(bytes(became))
        if bytes(was) == bytes(became):
            continue
        if max(sizes) > _LARGEST_SHOWN:
            changes[name] = Change(bytes_before=sizes[0], bytes_after=sizes[1])
        else:
            changes[name] = Change(before=was, after=became)
    return changes
