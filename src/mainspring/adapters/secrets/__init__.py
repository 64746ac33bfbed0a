"""Where secrets are kept."""
