"""``mainspring keys`` and ``mainspring tenants``."""
