"""Arguments of tasks: their schema and their encoding."""
