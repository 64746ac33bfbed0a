"""Gives runs the secrets that they may have."""

import msgspec

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.secrets import SecretRules, check_secret_value, fill_json, mentions, names_in
from mainspring.core.model.runs.verdicts import GiveUp
from mainspring.core.ports.secrets import Secrets
from mainspring.core.runtime.masking import masks
from mainspring.core.worker.reporting.capture import capture
from mainspring.core.worker.reporting.trace import Told


class SecretRefused(Told, GiveUp):
    """There is no such secret, it cannot be used, or not by this tenant. Another try would not change that."""


class Keyring:
    """Whoever gets a value has it masked from then on, in everything that this process tells."""

    def __init__(self, secrets: Secrets, rules: SecretRules) -> None:
        self._secrets = secrets
        self._rules = rules

    def check(self, tenant: str, payload: object) -> None:
        """Raises ``Invalid`` for a reference that could never be resolved. Whether there is a value, only who runs it
        knows: the process that accepts jobs may have none at all."""
        for name in sorted(names_in(payload)):
            self._rules.check("payload", tenant, name)

    def check_name(self, where: str, tenant: str, name: str) -> None:
        """The same for a field that is the name itself."""
        self._rules.check(where, tenant, name)

    def needed(self, tenant: str, payload: bytes) -> bool:
        """Whether a payload that is about to be run refers to secrets. Raises ``SecretRefused`` if not as it may: not
        every way in has asked before."""
        if not mentions(payload):
            return False
        try:
            self.check(tenant, msgspec.json.decode(payload))
        except Invalid as error:
            raise SecretRefused(str(error)) from None
        return True

    def read(self, tenant: str, name: str) -> str:
        """Raises ``SecretRefused``, which names the secret."""
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
        """A JSON value with the secrets in its strings."""
        return fill_json(value, lambda name: self.read(tenant, name))


class _Nowhere:
    def read(self, name: str) -> str | None:
        return None


#: For who has no secrets at all.
NO_SECRETS = Keyring(_Nowhere(), SecretRules())
