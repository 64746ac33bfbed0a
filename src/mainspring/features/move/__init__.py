"""Moving an SQLite installation to PostgreSQL."""
