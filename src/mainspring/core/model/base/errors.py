"""Errors that are part of the interface.

MainspringError
├── Invalid             bad input: names the field and the reason, never retried
├── NotFound            no such job, run, task …
├── Conflict            a valid request that the stored state does not allow
├── Denied              the API key is unknown or lacks the permission
├── Fenced              the caller's lease or fence is no longer the newest
├── StoreUnavailable    the store did not answer; the outcome may be unknown
│   └── StoreDamaged    its file is corrupt, foreign or gone; waiting does not help
├── SecretsUnavailable  the secret store did not answer, or refused access
└── BrokerUnavailable   a broker did not answer; nothing depends on it
"""


class MainspringError(Exception):
    """The base class of all errors that are part of the interface."""


class Invalid(MainspringError):
    """Bad input. ``field`` is the name that the caller used, ``reason`` a sentence, ``hint`` a valid alternative."""

    def __init__(self, field: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{field}: {reason}" + (f" ({hint})" if hint else ""))
        self.field = field
        self.reason = reason
        self.hint = hint


class NotFound(MainspringError):
    """The object does not exist, or it belongs to another tenant."""


class Conflict(MainspringError):
    """The stored state does not allow the request. ``existing`` is the id of the object in the way, if there is one."""

    def __init__(self, reason: str, existing: str = "") -> None:
        super().__init__(reason)
        self.existing = existing


class Denied(MainspringError):
    """The API key is unknown, or lacks the permission."""


class Fenced(MainspringError):
    """The lease or fence of the request is no longer the newest."""


class StoreUnavailable(MainspringError):
    """The store could not be reached or did not answer. The request may or may not have been executed."""


class StoreDamaged(StoreUnavailable):
    """The file of the store is corrupt, is not a database, or was removed or replaced. Waiting does not help."""


class SecretsUnavailable(MainspringError):
    """The secret store did not answer, or refused access. A later attempt may succeed."""


class BrokerUnavailable(MainspringError):
    """A broker that carries hints did not answer. The request may or may not have been executed."""
