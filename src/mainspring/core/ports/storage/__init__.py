"""Storage ports that the core and the features need in addition to ``core/store.py``."""
