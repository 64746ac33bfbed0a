"""Gives runs access to the secrets they may use."""

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.secrets import SecretRules, check_secret_value, fill_json, mentions, names_in
from mainspring.core.model.runs.handler_errors import GiveUp
from mainspring.core.ports.secrets import Secrets
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.reporting.capture import capture
from mainspring.core.worker.reporting.trace import ReportedError


class SecretRefused(ReportedError, GiveUp):
    """The secret does not exist, is unusable, or not allowed for this tenant. A retry would not change that."""


class Keyring:
    """Reads secrets. Every value that is read is masked from then on in all output of this process."""

    def __init__(self, secrets: Secrets, rules: SecretRules) -> None:
        self._secrets = secrets
        self._rules = rules

    def check(self, tenant: str, payload: object) -> None:
        """Raise ``Invalid`` for a reference that could never be resolved.

        Only the process that executes the run knows whether there is a value: the process that accepts jobs may have
        none.
        """
        for name in sorted(names_in(payload)):
            self._rules.check("payload", tenant, name)

    def check_name(self, where: str, tenant: str, name: str) -> None:
        """Raise ``Invalid`` if a field that is itself the name of a secret could never be resolved."""
        self._rules.check(where, tenant, name)

    def needed(self, tenant: str, payload: bytes) -> bool:
        """Return whether a payload that is about to be executed refers to secrets.

        Raises ``SecretRefused`` for a reference that is not allowed: not every way of submitting checks it.
        """
        if not mentions(payload):
            return False
        try:
            self.check(tenant, msgspec.json.decode(payload))
        except Invalid as error:
            raise SecretRefused(str(error)) from None
        return True

    def read(self, tenant: str, name: str) -> str:
        """Return the value of a secret. Raises ``SecretRefused``, which names the secret."""
        try:
            self._rules.check("secret", tenant, name)
            value = self._secrets.read(name)
            if value is None:
                raise Invalid("secret", f"there is no {name} here", "MAINSPRING_SECRET_…, a file, or Vault")
            check_secret_value(name, value)
        except Invalid as error:
            raise SecretRefused(str(error)) from None
        masks.learn(tenant, value)
        capture.hide()
        return value

    def fill(self, tenant: str, value: object) -> object:
        """Return a JSON value with the secrets filled into its strings."""
        return fill_json(value, lambda name: self.read(tenant, name))


class _Nowhere:
    def read(self, name: str) -> str | None:
        return None


#: For processes without any secrets.
NO_SECRETS = Keyring(_Nowhere(), SecretRules())
