"""Calls of tasks: their options, their runs and how they are submitted."""
