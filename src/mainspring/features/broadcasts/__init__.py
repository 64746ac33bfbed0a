"""Running a task once on every live worker."""
