"""Service level objectives of schedules."""
