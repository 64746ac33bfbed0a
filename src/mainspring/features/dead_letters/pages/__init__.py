"""Dashboard pages of dead letters and replays."""
