"""The memory store's transitions of runs, schedules and counters. Each is part of a caller's transaction."""
