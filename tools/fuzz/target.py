"""One fuzz target: inputs, and a check that raises if an input is not handled as documented."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st


class Target(NamedTuple):
    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], None]
    #: How many examples `make test-all` tries: about a minute of a quiet machine, the same ones each time.
    examples: int


def mixed(*pieces: str) -> st.SearchStrategy[str]:
    """Texts of such pieces, with other characters between them now and then."""
    piece = st.sampled_from(pieces)
    return st.lists(st.one_of(piece, piece, piece, piece, st.text(max_size=3)), max_size=16).map("".join)


def mutated(*texts: str) -> st.SearchStrategy[str]:
    """One of these texts with a part removed, repeated or replaced."""

    @st.composite
    def mutate(draw: st.DrawFn) -> str:
        text = draw(st.sampled_from(texts))
        for _ in range(draw(st.integers(0, 4))):
            start = draw(st.integers(0, len(text)))
            stop = draw(st.integers(start, min(len(text), start + 20)))
            middle = draw(
                st.sampled_from(["", text[start:stop] * 2, re.sub("[0-9]", "9", text[start:stop])])
                | st.text(max_size=4)
            )
            text = text[:start] + middle + text[stop:]
        return text

    return mutate()
