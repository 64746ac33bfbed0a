"""HTTP operations on processes, and the protocol of HTTP workers."""
