"""Cron expressions: parsing, finding the fire after or before an instant in a time zone, and describing in words.

Expressions have five fields (minute, hour, day of month, month, day of week), or six with the second first. Besides
numbers, names, ranges, steps and lists there are: ``L``, ``L-3``, ``LW`` and ``15W`` as days of month, ``5L`` and
``5#2`` as days of week, ``?`` in either of these, ``H`` (a value derived from the caller's key, which spreads the load)
and macros such as ``@daily``. When day of month and day of week are both restricted, either is enough; a field that
begins with ``*`` or is ``?`` counts as unrestricted, and then both must match. These are Vixie's rules.

Clock changes follow Debian's rule by default, with a switch for each half:

* An expression whose minute or hour field begins with ``*`` goes by elapsed time: it fires at every instant whose wall
  time matches. Both passes of a repeated hour fire, a jump adds nothing, and the switches do not matter.
* Any other expression names fixed times. A time that the clocks jump over fires at the jump (``run_after``; several
  such times make one fire) or not at all (``skip``). A time that comes twice fires in the first pass (``once``) or in
  both (``twice``). The letter decides: ``0-59`` and ``H`` do not begin with ``*``.

Every change of offset counts, however large and for any reason: Samoa's missing 30 December 2011 is a gap of a
day. The second field has no effect on this, so ``0 30 2 * * *`` is the same as ``30 2 * * *``.
"""

from mainspring.core.model.schedules.cron.clock_changes import ClockChange, clock_changes
from mainspring.core.model.schedules.cron.expression import Cron, DstFold, DstGap
from mainspring.core.model.schedules.cron.parts import FieldRange, parts
from mainspring.core.model.schedules.cron.zone import ZoneDatabase, find_zone_database, load_zone

__all__ = [
    "ClockChange",
    "Cron",
    "DstFold",
    "DstGap",
    "FieldRange",
    "ZoneDatabase",
    "clock_changes",
    "find_zone_database",
    "load_zone",
    "parts",
]
