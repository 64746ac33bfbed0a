"""Dead letters by fingerprint, and their replays."""
