"""The Django app config: imports the ``tasks.py`` of every installed app, and checks the settings."""

from typing import Any

from django.apps import AppConfig
from django.core.checks import Error, register
from django.utils.module_loading import autodiscover_modules

from mainspring.core.model.base.errors import MainspringError


class MainspringConfig(AppConfig):
    name = "mainspring.contrib.django"
    label = "mainspring"
    verbose_name = "Mainspring"

    def ready(self) -> None:
        register(check_settings)
        autodiscover_modules("tasks")


def check_settings(app_configs: object = None, **_: Any) -> list[Error]:
    """Report errors in ``MAINSPRING`` among the checks of ``manage.py check`` and ``runserver``."""
    from mainspring.contrib.django import app

    try:
        app.settings()
    except MainspringError as error:
        return [Error(str(error), id="mainspring.E001")]
    return []
