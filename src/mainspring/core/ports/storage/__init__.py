"""What the engine and the features need from a store beyond ``core/store.py``."""
