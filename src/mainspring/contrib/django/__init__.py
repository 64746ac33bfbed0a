"""Mainspring in a Django project: ``INSTALLED_APPS += ["mainspring.contrib.django"]``.

``from mainspring.contrib.django import task`` in the ``tasks.py`` of your apps. The ``MAINSPRING`` dictionary in the
settings of Django holds the settings of Mainspring.
"""

from mainspring.contrib.django.application import DjangoMainspring

__all__ = ["app", "task"]

app = DjangoMainspring()
task = app.task
