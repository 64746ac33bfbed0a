"""How far a consumer has come in a partition: over all that is done without a gap, whatever is done behind one."""

from collections import deque


class Track:
    """One partition while it is ours. What was taken of it when it was lost may come to another consumer as well."""

    __slots__ = ("_done", "_order", "committed", "held", "lost", "next", "partition", "topic")

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
        self._order: deque[int] = deque()
        self._done: set[int] = set()

    def came(self, offset: int) -> None:
        self._order.append(offset)
        self.next = offset + 1

    def done(self, offset: int) -> None:
        """Twice is fine."""
        if not self._order or offset < self._order[0] or offset in self._done:
            return
        self.held -= 1
        self._done.add(offset)
        while self._order and self._order[0] in self._done:
            self._done.remove(self._order.popleft())

    @property
    def position(self) -> int:
        """Where to go on after a restart."""
        return self._order[0] if self._order else self.next
