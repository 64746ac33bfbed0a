"""Everything else that is kept on SQLite."""
