"""``python -m mainspring``."""

from mainspring.cli import start

start()
