"""HTTP operations on jobs."""
