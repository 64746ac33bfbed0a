"""Dispatch of hints about queued runs to workers, through brokers."""
