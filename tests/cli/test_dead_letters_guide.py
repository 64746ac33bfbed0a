"""The guide to dead letters, on an installation that has some: canaries that fail, and canaries that succeed."""

import re
import shlex
from pathlib import Path

from tests.support.command_line import running_site
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs/guides/dead-letters.md"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_guide_to_dead_letters_works(tmp_path: Path) -> None:
    with running_site(tmp_path) as site:
        where = ("--store", site.store)
        for number in range(5):
            words = ("jobs", "submit", "send", "--arg", f"user_id={-number - 1}", "--retries", "0", "--wait")
            failed = site.call(*words, *where)
            assert failed.code == 1
        [group] = site.run("dead-letters", "list", "--json", *where).json["items"]
        assert (group["count"], sum(group["trend"])) == (5, 5)
        results = {}
        for line in "".join(_BLOCK.findall(PAGE.read_text())).splitlines():
            command = line.replace("9f86d081884c7d65", group["fingerprint"]).replace("--task mail", "--task send")
            results[line] = site.call(*shlex.split(command)[1:], *where)
        listed, by_task, patched, canary, discarded = results.values()
        assert group["fingerprint"] in listed.out
        assert (by_task.out, patched.out) == ("5 would be replayed\n",) * 2
        assert canary.code == 3
        assert "is stopped: 5 replayed; canary " in canary.out
        assert "failed (error)" in canary.out
        assert discarded.out == "5 would be discarded\n"
        fix = ("--patch", '{"user_id": 7}')
        works = site.run("dead-letters", "replay", "--task", "send", "--canary", "2", "--pace", "100/s", *fix, *where)
        assert works.out.rstrip().endswith("is done: 5 replayed")
        wait_until(lambda: not site.run("dead-letters", "list", "--json", *where).json["items"])
        newest, oldest = site.run("replays", "list", "--json", *where).json["items"]
        assert (newest["state"], oldest["state"]) == ("done", "stopped")
        over = site.call("replays", "cancel", newest["replayId"], *where)
        assert (over.code, "the replay is done" in over.err) == (1, True)
        both = site.call("dead-letters", "replay", "3f2a90c14b7e", "--canary", "2", *where)
        assert (both.code, "--canary" in both.err) == (2, True)
