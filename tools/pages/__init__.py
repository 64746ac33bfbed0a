"""Play the code blocks of documentation pages: files are written, commands run, outputs compared or recorded.

``python -m tools.pages`` lists the blocks of every page and how each is checked. ``--record PAGE`` plays pages and
writes what their commands print into them. ``tests/system/test_documentation.py`` plays every page and compares.

A page is a script. In the order of the page:

- A ``python`` block that begins with ``# name.py`` starts a file; later blocks without a name are appended to it.
- ``toml`` and ``yaml`` blocks that begin with ``# name`` are files, too.
- A ``sh`` block runs in bash. Variables stay set for the blocks after it. ``mainspring up`` and the other processes
  run until the page ends; a second ``mainspring up`` replaces the first.
- A ``text`` or ``json`` block after a ``sh`` block is its output. ``…`` stands for anything. Ids, times, durations
  and ports may differ.

A comment before a block changes that:

- ``<!-- not run: REASON -->``: the block is only parsed, and so is the output after it.
- ``<!-- no output: REASON -->``: the command prints something that the page does not show. A command without this mark
  shows its output, or prints nothing.
- ``<!-- exit: 1 -->``: the command must end with this exit code.
- ``<!-- log: TASK -->``: a ``text`` block shows what ``mainspring up`` logs about a task.

``pages.toml`` lists what pages need beforehand, and blocks that another test checks.
"""
