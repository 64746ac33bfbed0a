"""How far a consumer has come in a partition: over all that is done without a gap, whatever is done behind one."""


class Track:
    """One partition while it is ours. What was taken of it when it was lost may come to another consumer as well.

    It remembers what is not done: however much is done behind a gap, that costs nothing.
    """

    __slots__ = ("_open", "committed", "held", "lost", "next", "partition", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        #: Somebody else has the partition by now.
        self.lost = False
        #: Taken and not done.
        self.held = 0
        self.committed = -1
        #: The offset after the last that came.
        self.next = -1
        self._open: set[int] = set()

    def came(self, offset: int) -> None:
        self._open.add(offset)
        self.next = offset + 1

    def done(self, offset: int) -> None:
        """Twice is fine."""
        if offset in self._open:
            self._open.remove(offset)
            self.held -= 1

    @property
    def position(self) -> int:
        """Where to go on after a restart."""
        return min(self._open, default=self.next)
