"""The ports of the core: clock, notifications, brokers, files, mail."""
