"""HTTP operations on workflows."""
