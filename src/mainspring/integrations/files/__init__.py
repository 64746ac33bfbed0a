"""Objects and secrets in folders on disk."""
