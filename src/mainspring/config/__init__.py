"""Settings and wiring: makes the parts of a process from its settings."""
