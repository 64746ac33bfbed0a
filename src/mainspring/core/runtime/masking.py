"""Secrets that this process has read, and that are masked in all of its output."""

import threading

import msgspec

from mainspring.core.model.base.masking import MASK, Mask

#: The most values remembered per tenant; a changed value leaves its predecessor behind.
_MOST_VALUES = 1_000


class Masks:
    """The masks of the whole process, because output is shared: a client that one run created may fail in the next run.

    Output for a tenant is masked only by the values of that tenant. Masking other tenants' values would reveal them: a
    tenant could print guesses and see which are hidden.
    """

    def __init__(self) -> None:
        #: At least one secret was read. Until then masking costs nothing.
        self.any = False
        self._learning = threading.Lock()
        self._values: dict[str, dict[str, None]] = {}
        self._masks: dict[str, Mask] = {}
        self._all = Mask(())

    def learn(self, tenant: str, value: str) -> None:
        """Add a value; call before the value is passed on."""
        if value in self._values.get(tenant, ()):
            return
        with self._learning:
            values = [*self._values.get(tenant, ()), value][-_MOST_VALUES:]
            self._masks[tenant] = Mask(values)
            self._all = Mask([*values, *(value for known in self._values.values() for value in known)])
            self.any = True
            # Last: code that finds the value here relies on its being masked.
            self._values[tenant] = dict.fromkeys(values)

    def forget(self) -> None:
        """Forget all values. For tests."""
        with self._learning:
            self.any = False
            self._values.clear()
            self._masks.clear()
            self._all = Mask(())

    def text(self, tenant: str, text: str) -> str:
        mask = self._masks.get(tenant)
        return text if mask is None else mask.text(text)

    def json(self, tenant: str, data: bytes) -> bytes:
        """Mask JSON; the result is valid JSON."""
        mask = self._masks.get(tenant)
        if mask is None or not mask.found_in(data.decode("utf-8", "replace")):
            return data
        try:
            masked = msgspec.json.encode(mask.json(msgspec.json.decode(data)))
        except (msgspec.MsgspecError, RecursionError):
            return msgspec.json.encode(MASK)
        # A value can also span parts of the JSON notation.
        return msgspec.json.encode(MASK) if mask.found_in(masked.decode()) else masked

    def everything(self, text: str) -> str:
        """Mask the output of the process itself, which belongs to no tenant."""
        return self._all.text(text) if self.any else text

    def longest(self, tenant: str) -> int:
        """Return the longest value's length.

        Code that cuts a text first may cut a value in two, and must remove this much around the cut.
        """
        mask = self._masks.get(tenant)
        return 0 if mask is None else mask.longest


masks = Masks()
