"""What goes over the wire: camelCase names, RFC 3339 times, durations as words."""
