"""Archives history to files before it is deleted."""
