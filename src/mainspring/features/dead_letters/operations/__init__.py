"""HTTP operations on dead letters and replays."""
