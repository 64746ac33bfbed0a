"""Where rows live. Statements and access to rows, no rules."""
