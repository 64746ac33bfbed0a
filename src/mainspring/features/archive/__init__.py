"""Writing history to files before it is dropped."""
