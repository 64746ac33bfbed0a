"""Settings and wiring: builds the components of a process from its settings."""
