"""The journal: every fact and order of a daemon's life, in one SQLite file. Only this package knows how it is kept.

`writer.py` is the daemon's side of it: it collects, and remembers what may be asked. `disk.py` is the side that
touches the file, on a thread of its own. `blocks.py` packs old rows. `reader.py` reads the file for everybody else,
`facts.py` says how an event or effect is written, `schema.py` what tables there are.

Rules
  J1  Every call of the core is in the log, in the order of the calls: its event, then its effects in their order.
      Also one without consequence, for a replay must see what the core saw.
  J2  The first event of a life is NodeConfigured. So the log holds all that its decisions depend on: the events of
      one life, told to a new scheduler of the same policy at the recorded times, give every recorded effect.
  J3  What is missing is said. Where rows were dropped because the disk took none, a row of its own has their number;
      a reader stops there. A life whose beginning was forgotten for its age is refused, and one that ends in the
      middle of a call is said to.
  J4  A disk that refuses or hangs stops nobody: what was collected waits, the trouble is kept as a sentence, and
      writing is tried again later. The daemon's loop never waits for the disk once it serves.
  J5  A file of a newer form is refused with a sentence and left as it is. One of an older form is written on; its old
      lives, which lack their configuration, are refused with a sentence when they are to be replayed.
  J6  A damaged file is set aside under another name, and a new one is begun. What could be read of it, and what the
      daemon remembers, is written into the new one. So is it where the file was removed or replaced under a daemon.
  J7  The file has a bound in bytes. Old rows are packed, then the oldest are forgotten, in small steps.
"""

from __future__ import annotations

BYTES_MAX = 64 << 20  # of the file, unless somebody says otherwise
BYTES_MIN = 4 << 20
