"""Kafka: broker, event sink and requests."""
