"""The scheduler: a wheel that says when to look, a loader that fills it, and the service that stages and fires."""
