"""Readers of the payloads of the tasks ``workflow`` and ``fan_out``."""
