"""Jobs created from Kafka records."""
