"""Measurements of the engine: one file each."""
