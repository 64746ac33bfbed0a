"""Secrets in a folder with one file each, as container platforms mount them."""

import os
import stat
from pathlib import Path

from mainspring.core.model.base.errors import Invalid
from mainspring.core.model.base.secrets import LONGEST


class FolderSecrets:
    """The file ``API_KEY`` holds the secret ``API_KEY``. A trailing line break is not part of the value."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> str | None:
        try:
            file = os.open(self._folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Invalid(name, f"the secret's file cannot be read: {error.strerror}") from None
        try:
            # fstat checks the opened file, so the path cannot be replaced between check and read.
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise Invalid(name, "the secret's file is not a file")
            if found.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
                mode = stat.filemode(found.st_mode)
                raise Invalid(name, f"others may read or write the secret's file ({mode})", "chmod 600")
            data = os.read(file, LONGEST * 4 + 2)
        finally:
            os.close(file)
        try:
            return data.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise Invalid(name, "the secret's file is not UTF-8", "base64 can hold any bytes") from None
