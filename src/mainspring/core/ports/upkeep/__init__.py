"""What looks after a whole store: schema, backup, transfer, promotion, archive."""
