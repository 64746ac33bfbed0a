"""Exit codes that scripts can rely on."""

from mainspring.core.model.base.errors import Conflict, Fenced, MainspringError, NotFound, StoreUnavailable

#: The object of the command failed, or its state does not allow the command.
FAILED = 1
BAD_INPUT = 2
PARTLY = 3
NOT_FOUND = 4
DENIED = 5
AWAY = 6

WORDS = {
    0: "success",
    FAILED: "the awaited run failed, or the state of the object does not allow the command",
    BAD_INPUT: "invalid option or input; nothing was changed",
    PARTLY: "partial success; stderr lists what failed",
    NOT_FOUND: "not found, or it belongs to another tenant",
    DENIED: "the key is unknown, or lacks the permission",
    AWAY: "the store or the API does not answer",
    130: "interrupted by Ctrl-C",
}


def find_exit_code(error: MainspringError) -> int:
    # Compare the name: importing the client takes a tenth of a second.
    if type(error).__name__ == "Denied":
        return DENIED
    match error:
        case NotFound():
            return NOT_FOUND
        case Conflict() | Fenced():
            return FAILED
        case StoreUnavailable():
            return AWAY
        case _:
            return BAD_INPUT
