"""Writes ``docs/reference/problems.md``: every type of problem, from where they are declared.

python -m tools.problems_reference > docs/reference/problems.md
"""

from mainspring.http.problem_types import PATH, TYPES

_HEAD = f"""# Problems

Why the HTTP API did not do what a request asked for. Every error is `application/problem+json` (RFC 9457) with `type`,
`title`, `status` and usually `detail`; for bad input also with `field` and `hint`, and for a conflict with the
`existingId` of the job or run in the way.

`type` is stable: compare it in programs, not the words of `title` and `detail`. It is an address relative to the root
of the API, such as `{PATH}#not-found`. A running API serves this page there. `make reference` writes it from the code.
"""


def page() -> str:
    parts = [
        f"## {one.title}\n\n`{PATH}#{one.slug}`, status {one.status}.\n\n{one.meaning}\n\n{one.remedy}\n"
        for one in TYPES
    ]
    return "\n".join([_HEAD, *parts])


if __name__ == "__main__":
    print(page(), end="")
