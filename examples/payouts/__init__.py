"""Payouts and promotions: money on time and exactly once, mails after it, analyses when there is room."""

from examples.payouts.application import app

__all__ = ["app"]
