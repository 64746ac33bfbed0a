"""SQLite: all records other than the life of runs."""
