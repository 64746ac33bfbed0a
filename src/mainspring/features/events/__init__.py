"""Publishing events to sinks, and streaming them."""
