"""What happens to rows, written once for all stores.

A rule is a coroutine over a small protocol of rows. It runs inside a transaction of the store and works in batches.
It has no I/O and no clock of its own: the store's time comes with the rows.
"""
