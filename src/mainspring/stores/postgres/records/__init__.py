"""Everything else that is kept on PostgreSQL."""
