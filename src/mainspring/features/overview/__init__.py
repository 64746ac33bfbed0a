"""The overview page of the dashboard."""
