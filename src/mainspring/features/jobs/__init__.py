"""Jobs: create, change, preview, pause, cancel."""
