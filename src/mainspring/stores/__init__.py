"""Store adapters: statements and access to rows, without domain rules."""
