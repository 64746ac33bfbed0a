"""Kafka: sending and receiving in batches, for whoever uses it. The client blocks, so it has threads of its own."""
