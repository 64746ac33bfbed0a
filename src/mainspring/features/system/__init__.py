"""The state of the whole installation."""
