"""Load the models of a Django project before the tasks that use them are imported."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

_VARIABLE = "DJANGO_SETTINGS_MODULE"
_DEFAULT = re.compile(r"""setdefault\(\s*["']DJANGO_SETTINGS_MODULE["']\s*,\s*["']([\w.]+)["']""")


def find_django_settings(folder: Path) -> None:
    """Set the settings module that a folder's ``manage.py`` names, unless the environment has one."""
    if _VARIABLE in os.environ:
        return
    try:
        found = _DEFAULT.search((folder / "manage.py").read_text("utf-8"))
    except (OSError, ValueError):
        return
    if found is not None:
        os.environ[_VARIABLE] = found[1]


def set_up_django() -> None:
    """Call ``django.setup()`` if the environment names a settings module and it was not called before."""
    if not os.environ.get(_VARIABLE) or find_spec("django") is None:
        return
    import django
    from django.apps import apps

    if not apps.ready:
        django.setup()
