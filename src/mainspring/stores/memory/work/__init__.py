"""Memory store: submitting, claiming, completing and cleaning up runs."""
