"""The one guarded way out for HTTP."""
