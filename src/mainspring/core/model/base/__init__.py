"""Identifiers, instants, errors and other small values used by the whole model."""
