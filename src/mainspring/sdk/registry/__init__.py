"""Declare tasks and schedules."""
