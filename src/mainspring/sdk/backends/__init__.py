"""Where the SDK submits: a store in this process, or the HTTP API."""
