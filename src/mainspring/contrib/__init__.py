"""Mainspring inside web frameworks. Nothing here is imported unless you name it."""
