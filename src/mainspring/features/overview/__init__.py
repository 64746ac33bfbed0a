"""The overview page of the dashboard, and its findings."""
