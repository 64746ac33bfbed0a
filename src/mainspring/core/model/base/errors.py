"""What can be wrong with what somebody asked for, or with what somebody holds.

MainspringError
├── Invalid            bad input: names the field and the reason, never retried
├── NotFound           no such job, run, task …
├── Conflict           true of the request, false of the stored state
├── Denied            the API does not let this key do this, or does not know it
├── Fenced             the caller lost the lease or fence it acts under
├── StoreUnavailable   the store did not answer; the outcome may be unknown
│   └── StoreDamaged   its file is corrupt, foreign or gone; waiting does not help
└── EngineUnavailable  an engine that carries hints did not answer; nothing depends on it
"""


class MainspringError(Exception):
    """The root of every error that is part of the interface."""


class Invalid(MainspringError):
    """Bad input. ``field`` is the name the caller used, ``reason`` a sentence, ``hint`` what would be valid."""

    def __init__(self, field: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{field}: {reason}" + (f" ({hint})" if hint else ""))
        self.field = field
        self.reason = reason
        self.hint = hint


class NotFound(MainspringError):
    """There is no such thing, or it belongs to another tenant."""


class Conflict(MainspringError):
    """The stored state does not allow it."""


class Denied(MainspringError):
    """The API does not let this key do this, or does not know it."""


class Fenced(MainspringError):
    """The lease or fence under which this was asked is no longer the newest."""


class StoreUnavailable(MainspringError):
    """The store could not be reached or did not answer. What was asked may or may not have happened."""


class StoreDamaged(StoreUnavailable):
    """The file of the store is corrupt, is no database, or was removed or replaced. Waiting does not help."""


class SecretsUnavailable(MainspringError):
    """What keeps secrets did not answer, or not to us. It may later."""


class EngineUnavailable(MainspringError):
    """An engine that carries hints did not answer. What it was asked may or may not have happened."""
