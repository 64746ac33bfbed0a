"""Alert rules and the channels that alerts are sent to."""
