"""Data centers and their state."""
