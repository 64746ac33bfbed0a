"""Pages of dead letters and replays."""
