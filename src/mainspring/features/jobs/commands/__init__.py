"""``mainspring jobs``."""
