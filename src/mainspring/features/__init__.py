"""What may be absent. One folder each: model, service, operations, commands, pages."""
