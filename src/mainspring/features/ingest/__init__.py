"""Jobs made of Kafka records."""
