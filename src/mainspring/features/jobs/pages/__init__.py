"""Dashboard pages of jobs."""
