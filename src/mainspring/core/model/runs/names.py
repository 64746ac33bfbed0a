"""Names, sizes and other bounds of caller input, and the checks that enforce them."""

from collections.abc import Iterable

from mainspring.core.model.base.checks import check_whole
from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.instant import DAY, Micros

MAX_PAYLOAD = 256 * 1024


MAX_RESULT = 64 * 1024


MAX_STATE = 256 * 1024


MAX_ERROR = 16 * 1024


MAX_NAME = 200


MAX_TAGS = 20


MAX_WEIGHT = 1_000


#: Prefix of the tag that holds the name by which another program knows a job.
JOB_TAG = "job:"


#: Stands for all tenants where a tenant's name is expected.
ALL_TENANTS = "*"


#: The maximum length of a reason given by a user.
MAX_WHY = 1_000


def clean_error(error: str) -> str:
    """Keep the end of a long error, where the cause stands, and replace characters that databases refuse."""
    cleaned = error.encode("utf-8", "replace").decode("utf-8").replace("\x00", "�")
    return cleaned if len(cleaned) <= MAX_ERROR else "… " + cleaned[-MAX_ERROR:]


def check_name(field: str, name: str) -> str:
    """Check that a name has 1 to 200 printable characters and no spaces at its ends."""
    good = isinstance(name, str) and name and len(name) <= MAX_NAME and name.isprintable() and name == name.strip()
    if not good:
        raise Invalid(field, f"{name!r:.40} is not a name", f"1 to {MAX_NAME} printable characters")
    return name


def check_queue(field: str, name: str) -> str:
    """Check the name of a queue. It is a path segment, so a queue with a slash could not be paused."""
    check_name(field, name)
    if "/" in name or name in (".", ".."):
        raise Invalid(field, f"{name!r:.40} is not a name of a queue", "without a slash, and not just dots")
    return name


def check_tenant(field: str, name: str) -> str:
    """Check the name of a tenant. ``*`` is reserved: in tokens it means all tenants."""
    check_name(field, name)
    if name == ALL_TENANTS:
        raise Invalid(field, f"{ALL_TENANTS!r} means all tenants", "another name")
    return name


def external_name(tags: Iterable[str]) -> str:
    """Return the name by which another program knows a job, from its tags; empty if there is none."""
    return min((tag[len(JOB_TAG) :] for tag in tags if tag.startswith(JOB_TAG)), default="")


def check_limit(field: str, limit: Micros) -> None:
    check_whole(field, limit, 1, 100 * 366 * DAY, "more than 0 and at most 100 years")


def check_payload(payload: bytes) -> None:
    if not isinstance(payload, bytes):
        raise Invalid("payload", f"{payload!r:.40} is not bytes")
    if len(payload) > MAX_PAYLOAD:
        raise Invalid("payload", f"is {len(payload)} bytes", f"at most {MAX_PAYLOAD}")


def check_labels(owner: str, tags: tuple[str, ...]) -> None:
    if owner != "":
        check_name("owner", owner)
    if not isinstance(tags, tuple) or len(tags) > MAX_TAGS:
        raise Invalid("tags", "are too many, or no tuple", f"at most {MAX_TAGS}")
    for tag in tags:
        check_name("tags", tag)
    if len(set(tags)) < len(tags):
        raise Invalid("tags", "has one of them twice")
