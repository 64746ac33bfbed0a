"""Workers and schedulers: list, drain, and workers over HTTP."""
