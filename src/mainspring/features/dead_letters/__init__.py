"""Dead letters by fingerprint, and their replay."""
