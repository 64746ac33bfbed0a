"""Mainspring in a Django project: ``INSTALLED_APPS += ["mainspring.contrib.django"]``.

Use ``from mainspring.contrib.django import task`` in the ``tasks.py`` of your apps. The ``MAINSPRING`` dictionary in
Django's settings holds the settings of Mainspring.
"""

from mainspring.contrib.django.application import DjangoMainspring

__all__ = ["app", "task"]

app = DjangoMainspring()
task = app.task
