"""What applications import: tasks, schedules, submitting."""
