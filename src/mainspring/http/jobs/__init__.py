"""What operations of several features do with jobs and runs."""
