"""Distributed cron: maintenance in four data centers, fired once in each, whichever scheduler dies."""

from examples.distributed_cron.application import app, rehearsal

__all__ = ["app", "rehearsal"]
