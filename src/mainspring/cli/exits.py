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
    0: "done",
    FAILED: "what was asked about failed, such as a run that was waited for; or its state does not allow it",
    BAD_INPUT: "a wrong option or input; nothing was done",
    PARTLY: "some of it was done; stderr says what was not",
    NOT_FOUND: "there is no such thing, or it is another tenant's",
    DENIED: "the key is not known, or may not do this",
    AWAY: "the store or the API does not answer",
    130: "ended by Ctrl-C",
}


def code_of(error: MainspringError) -> int:
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
