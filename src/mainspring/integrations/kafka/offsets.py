"""Tracks the offset up to which all records of a partition are done."""


class OffsetTracker:
    """A partition that is assigned to this consumer. After it is lost, its taken records may be delivered again.

    Only offsets that are not done are stored, so that records done behind a gap need no memory.
    """

    __slots__ = ("_open", "committed", "held", "lost", "next", "partition", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        #: The partition is assigned to another consumer.
        self.lost = False
        #: The number of records that are taken and not done.
        self.held = 0
        self.committed = -1
        #: The offset after the last received record.
        self.next = -1
        self._open: set[int] = set()

    def came(self, offset: int) -> None:
        self._open.add(offset)
        self.next = offset + 1

    def done(self, offset: int) -> None:
        """Mark a record as done. Repeated calls have no effect."""
        if offset in self._open:
            self._open.remove(offset)
            self.held -= 1

    @property
    def position(self) -> int:
        """The offset at which to continue after a restart."""
        return min(self._open, default=self.next)
