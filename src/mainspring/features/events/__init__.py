"""Publishing events to sinks, webhooks and the status cache, and streaming them."""
