"""Actions on many jobs or runs at once."""
