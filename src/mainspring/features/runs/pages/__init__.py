"""Dashboard pages of runs."""
