"""Redis: broker, coordinator, event sink and status cache."""
