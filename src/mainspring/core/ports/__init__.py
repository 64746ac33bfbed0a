"""The ports of the core: clock, wake-ups, brokers, coordinators, events, health, objects, secrets and mail."""
