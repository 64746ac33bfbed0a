"""Identifiers, instants, errors and other small values that every idea uses."""
