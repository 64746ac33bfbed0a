"""Outgoing HTTP."""
