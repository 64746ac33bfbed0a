"""``mainspring backup`` and ``mainspring restore``."""
