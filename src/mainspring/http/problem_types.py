"""The types of problems, and the pages about them: ``docs/reference/problems.md`` and ``/docs/problems``."""

from typing import NamedTuple

PATH = "/docs/problems"


class ProblemType(NamedTuple):
    title: str
    status: int
    meaning: str
    remedy: str

    @property
    def slug(self) -> str:
        return build_slug(self.title)


TYPES = (
    ProblemType(
        "Bad request",
        400,
        "The request is wrong. `field` names the field or parameter as you wrote it, `detail` says what is wrong.",
        "Correct the field; `hint` often has the right form, or the name that was meant.",
    ),
    ProblemType(
        "Unauthorized",
        401,
        "Credentials are missing, wrong, expired or revoked.",
        "Send `Authorization: Bearer <API key or token>`.",
    ),
    ProblemType(
        "Forbidden",
        403,
        "The role of the key does not allow the operation, the key does not reach the queue or tenant, or a page of "
        "another site sent the request.",
        "Use a key with the role or the queue that `detail` names.",
    ),
    ProblemType("Read-only", 403, "The dashboard is in read-only mode.", "Use the API, or unset `ui.read_only`."),
    ProblemType(
        "This page is too old",
        403,
        "The form was loaded before the session or the server was renewed. Nothing was done.",
        "Load the page again and repeat the action.",
    ),
    ProblemType(
        "Not found",
        404,
        "The path exists, but there is no object with this id or name, or it belongs to another tenant.",
        "Check the id and the tenant of your key. Objects are deleted when their retention ends.",
    ),
    ProblemType(
        "Unknown path",
        404,
        "This API has no such path.",
        "Check the spelling; `hint` has the nearest path. `/docs` lists all of them.",
    ),
    ProblemType(
        "Method not allowed", 405, "The path exists, but not with this method.", "`hint` and `Allow` name the methods."
    ),
    ProblemType("Request timeout", 408, "The body arrived too slowly.", "Send it again, a batch in smaller parts."),
    ProblemType(
        "Conflict",
        409,
        "The stored state does not allow it: an idempotency key was used for another request, a name is taken, another "
        "client changed the object, or it has ended.",
        "Read the object again and decide. The same request fails again until the state changes.",
    ),
    ProblemType(
        "No address",
        409,
        "There is no address of the log: the run has not ended, or its log is not in a bucket.",
        "Leave out `url` to read the lines, or keep logs in a bucket by `run_logs`.",
    ),
    ProblemType(
        "Fenced",
        409,
        "The worker no longer holds the run: its lease expired and another attempt may be running.",
        "Stop working on the run. Report nothing more about this attempt.",
    ),
    ProblemType("Content too large", 413, "The body is larger than the operation takes.", "Send less at once."),
    ProblemType(
        "Unsupported media type",
        415,
        "The body is not plain JSON.",
        "Send `Content-Type: application/json`, without compression.",
    ),
    ProblemType(
        "Quota reached",
        429,
        "The tenant has reached one of its quotas.",
        "Wait until runs end, or ask an administrator for a larger quota. `Retry-After` says when to try again.",
    ),
    ProblemType(
        "Too many requests",
        429,
        "The key sends more requests than its rate limit allows, or an address sent too many wrong credentials.",
        "Wait as long as `Retry-After` says. Send jobs in batches.",
    ),
    ProblemType(
        "Too many at once",
        429,
        "Too many streams or requests of this kind are open.",
        "Close some, and wait as long as `Retry-After` says.",
    ),
    ProblemType(
        "Internal error",
        500,
        "The server failed. Its log has the details.",
        "Report it with the time and the path. A submit with an idempotency key can be sent again.",
    ),
    ProblemType("Store damaged", 500, "The database file is damaged or is not a database.", "Run `mainspring doctor`."),
    ProblemType(
        "Overloaded",
        503,
        "The server has no room for the request at the moment.",
        "Wait as long as `Retry-After` says and send it again.",
    ),
    ProblemType(
        "Store unavailable",
        503,
        "The store did not answer. The request may or may not have taken effect.",
        "Send it again, with the same idempotency key if you submit.",
    ),
    ProblemType(
        "Logs unavailable",
        503,
        "The bucket or folder with the logs of ended runs did not answer.",
        "Try again later. `mainspring doctor` says more.",
    ),
    ProblemType(
        "Not done in time",
        503,
        "The operation took longer than it may. It may or may not have taken effect.",
        "Send it again, with the same idempotency key if you submit.",
    ),
)


def build_slug(title: str) -> str:
    return title.lower().replace(" ", "-")


def find_type(title: str) -> str:
    """Return the URI of a problem's type: the place of its description, relative to the root of the API."""
    return f"{PATH}#{build_slug(title)}"
