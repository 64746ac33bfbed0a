"""``mainspring workers`` and ``mainspring schedulers``."""
