"""Arguments of tasks: their schema, and encoding them."""
