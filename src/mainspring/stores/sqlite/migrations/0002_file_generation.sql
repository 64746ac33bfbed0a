-- The generations of the file: file_guard.py compares them with the header to detect a file that was overwritten.

CREATE TABLE file_generation (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    stamp  INTEGER NOT NULL                      -- random; the header's user_version while it is the newest
) STRICT;
