"""The Python SDK: tasks, schedules and submitting."""
