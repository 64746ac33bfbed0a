"""The scheduler: an agenda of due times, a loader that fills it, and the service that stages runs and fires ticks."""
