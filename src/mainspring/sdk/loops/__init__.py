"""Event loops that an application uses."""
