"""The values that this process has read and that must not be seen in anything that leaves it."""

import threading

import msgspec

from mainspring.core.model.base.masking import MASK, Mask

#: Values of one tenant that are remembered; a value that changes leaves its predecessor behind.
_MOST_VALUES = 1_000


class Masks:
    """Of the whole process, as its output is: a client that one run made with a secret may fail in the next run.

    What a tenant sees is masked by the values of that tenant alone. By those of others it could find out what they are:
    it would print guesses and see which of them are hidden.
    """

    def __init__(self) -> None:
        #: Something was read. As long as nothing was, nobody pays for masking.
        self.any = False
        self._learning = threading.Lock()
        self._values: dict[str, dict[str, None]] = {}
        self._masks: dict[str, Mask] = {}
        self._all = Mask(())

    def learn(self, tenant: str, value: str) -> None:
        """Before the value is given to anybody."""
        if value in self._values.get(tenant, ()):
            return
        with self._learning:
            values = [*self._values.get(tenant, ()), value][-_MOST_VALUES:]
            self._masks[tenant] = Mask(values)
            self._all = Mask([*values, *(value for known in self._values.values() for value in known)])
            self.any = True
            # Last: whoever finds the value here relies on its being masked.
            self._values[tenant] = dict.fromkeys(values)

    def forget(self) -> None:
        """For tests: nothing was read."""
        with self._learning:
            self.any = False
            self._values.clear()
            self._masks.clear()
            self._all = Mask(())

    def text(self, tenant: str, text: str) -> str:
        mask = self._masks.get(tenant)
        return text if mask is None else mask.text(text)

    def json(self, tenant: str, data: bytes) -> bytes:
        """JSON stays JSON."""
        mask = self._masks.get(tenant)
        if mask is None or not mask.found_in(data.decode("utf-8", "replace")):
            return data
        try:
            masked = msgspec.json.encode(mask.json(msgspec.json.decode(data)))
        except (msgspec.MsgspecError, RecursionError):
            return msgspec.json.encode(MASK)
        # A value can also lie across what belongs to the notation.
        return msgspec.json.encode(MASK) if mask.found_in(masked.decode()) else masked

    def everything(self, text: str) -> str:
        """For the output of the process itself, which belongs to no tenant."""
        return self._all.text(text) if self.any else text

    def longest(self, tenant: str) -> int:
        """Whoever cuts a text first may cut a value in two. So much around the cut has to go then."""
        mask = self._masks.get(tenant)
        return 0 if mask is None else mask.longest


masks = Masks()
