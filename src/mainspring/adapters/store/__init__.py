"""The store: memory (the reference), SQLite, PostgreSQL."""
