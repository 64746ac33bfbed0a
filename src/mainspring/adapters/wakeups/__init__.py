"""Hints inside a process and between processes."""
