"""Features, one folder each: model, service, operations, commands and pages. The core runs without them."""
