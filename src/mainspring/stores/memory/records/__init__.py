"""Everything else that is kept in memory."""
