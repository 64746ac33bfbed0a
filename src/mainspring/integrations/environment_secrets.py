"""Secrets in the environment of the process."""

import os
from collections.abc import Mapping

PREFIX = "MAINSPRING_SECRET_"


class EnvironmentSecrets:
    """``MAINSPRING_SECRET_API_KEY`` is the secret ``API_KEY``."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    def read(self, name: str) -> str | None:
        return self._environment.get(PREFIX + name)
