"""``mainspring dead-letters``."""
