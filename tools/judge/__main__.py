"""``python -m tools.judge history.jsonl``: the judgement as JSON; exits with 1 if anything is wrong."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from tools.judge import judge, read
from tools.judge.history import DecodeError


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m tools.judge history.jsonl\n")
        return 2
    try:
        with Path(arguments[0]).open() as lines:
            judgement = judge(read(lines))
    except (OSError, DecodeError) as error:
        sys.stderr.write(f"{arguments[0]}: {error}\n")
        return 2
    json.dump(asdict(judgement) | {"sound": judgement.sound}, sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0 if judgement.sound else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
