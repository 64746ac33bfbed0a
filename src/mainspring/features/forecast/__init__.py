"""Forecast of runs per minute."""
