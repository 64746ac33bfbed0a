"""Count the files in the temporary folder that are older than --days, and delete them only with --delete=true."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

DAY = 24 * 60 * 60


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--days", type=float, default=30)
    options.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options.add_argument("--delete", choices=["true", "false"], default="false")
    given = options.parse_args()
    oldest = time.time() - given.days * DAY
    print(f"looking for files in {given.folder} that are older than {given.days:g} days", flush=True)
    files = [path for path in given.folder.iterdir() if path.is_file() and not path.is_symlink()]
    old = 0
    for number, path in enumerate(files, 1):
        if number % (len(files) // 10 + 1) == 0 or number == len(files):
            # This line is not logged: it sets the progress of the run.
            print(f"::progress {number}/{len(files)}", flush=True)
        try:
            if path.stat().st_mtime < oldest:
                old += 1
                if given.delete == "true":
                    path.unlink()
        except OSError as error:
            print(f"skipped a file: {error}", file=sys.stderr)
    print(f"{'deleted' if given.delete == 'true' else 'found'} {old} of {len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
