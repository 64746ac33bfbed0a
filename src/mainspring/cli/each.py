"""Runs one command on several named objects."""

from collections.abc import Awaitable, Callable, Sequence

import typer

from mainspring.cli import exits
from mainspring.cli.client.target import Raw
from mainspring.cli.output import Output
from mainspring.core.model.base.errors import MainspringError, StoreUnavailable


async def act_on_each(out: Output, names: Sequence[str], act: Callable[[str], Awaitable[tuple[Raw, str, str]]]) -> None:
    """Apply ``act`` to each name; it returns an answer, an id and a message. A failure does not stop the others."""
    done: list[tuple[Raw, str, str]] = []
    failed: list[MainspringError] = []
    for name in names:
        try:
            done.append(await act(name))
        except StoreUnavailable as error:
            # The store is unavailable for the other names as well.
            failed.append(error)
            break
        except MainspringError as error:
            failed.append(error)
    if failed and len(names) == 1:
        raise failed[0]
    answers = [answer for answer, _, _ in done]
    out.render(
        answers[0] if len(names) == 1 else {"items": answers},
        [identifier for _, identifier, _ in done],
        lambda: out.print("\n".join(words for _, _, words in done)),
    )
    for failure in failed:
        out.note(str(failure))
    if failed:
        raise typer.Exit(exits.PARTLY if done else exits.find_exit_code(failed[0]))
