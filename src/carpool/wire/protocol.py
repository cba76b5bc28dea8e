"""Every number that a job and the daemon must agree on: the page's words, flags, times, versions.

This is the only place where they are written. `make docs` makes from it (and from the messages in messages.py):
native/page.h and native/protocol.h, the tables of docs/protocol.md, and the constants in the files that may import
nothing of carpool (agent/inject/sitecustomize.py, bench/programs/attack_{turns,members}.py). The test
tests/wire/test_protocol.py fails when one of them differs from this file.

One line is one number: its name, its value, and after the `#` what it means. For a word the meaning begins with who
writes it: the daemon, the Python agent, the CUDA guest, or both guests; the byte meter of the CPU device is the other
guest. docs/protocol.md says how to add a word, a flag or a message.
"""

from __future__ import annotations

# versions: a daemon and a job of different ones refuse each other
PROTOCOL = 5  # of the messages; raise it when one of them changes
LAYOUT = 4  # of the page; raise it when a word of it changes
HOT_PATH_CONTRACT = 11  # between native/hot_path.c and agent/turns/hot_path.py; raise it when either changes
FIND_AND_COPY_CONTRACT = 2  # between native/find_and_copy.c and agent/parking/find_and_copy.py; the same
SWAP_CONTRACT = 3  # between native/swap.c and wire/page.py; the same

# frame: the fixed part of a message
FRAME = "<HHI4Q"  # kind, zero, length of the body, the words; little-endian
FRAME_WORDS = 4  # words in a frame
FRAME_BYTES = 40  # of a frame
BODY_MAX = 4 << 20  # bytes of a body; the environment of a submitted job is the largest thing that travels
REPLY_MAX = 256 << 20  # bytes of the body of a Reply, which only a client reads; a list of 5,000 jobs has 12 MiB

# page: how the file is divided
MAGIC = 0x314C4F4F50524143  # the bytes "CARPOOL1", little-endian
PAGE_BYTES = 131072  # of the file
SLOT_WORDS = 32  # of a slot, and of the header; those without a name are spare
TEXT_BYTES = 512  # at the end: the daemon's sentence about its newest denial (H_DENIED_NS), ended by a zero
TEXT_AT = PAGE_BYTES - TEXT_BYTES  # where that sentence begins
SLOTS = TEXT_AT // 8 // SLOT_WORDS  # slots in the page; slot 0 is the header
FIRST_LENT = 448  # slots from here on are lent by the daemon, to processes without the meter

# header words: one set a job
H_MAGIC = 0  # daemon: MAGIC, written last: a reader that sees it sees the rest
H_LAYOUT = 1  # daemon: LAYOUT; a page of another layout is not used
H_CAP = 2  # daemon: bytes all processes of the job may hold together; 0 is no cap
H_WAITERS = 3  # daemon: how many other jobs wait for this job's lane
H_SLOTS_USED = 4  # guests: one past the highest slot that anybody ever tried to claim
H_DENIED_COUNT = 5  # guests: allocations refused for the cap
H_DENIED_BYTES = 6  # guests: size of the newest refused allocation
H_LENT_USED = 7  # daemon: one past the highest slot ever lent; 0 if none was
H_CHECKPOINT = 8  # daemon: number of its newest order to write a checkpoint (the order is a file); 0 is none
H_PRICE = 9  # daemon: wall time that device time costs, PRICE_ONE is 1:1; 0 is no compute limit
H_PAID_UNTIL = 10  # CUDA guest: time up to which all launches are paid for; nobody of the job launches before it
H_DEVICE_NS = 11  # CUDA guest: device time of all processes the job ever had, as it was paid for
H_ENDED_NS = 12  # CUDA guest: when the latest kernel that they measured ended
H_CAPACITY = 13  # daemon: the most bytes that are worth waiting for, 0 is unknown; bit OWN_CAP: the cap is the user's
H_DENIED_NS = 14  # daemon: time of its newest denial; allocations that began to wait before it fail
H_TRIAL = 15  # CUDA guest: since when one of them runs a kernel never measured, its pid in TRIAL_PID; 0 is none

# slot words: one set a process
S_PID = 0  # guests, daemon: the process whose slot this is, its owner; 0 is a free slot
S_LIVE = 1  # guests, agent: bytes held now; signed, because what was there before the meter may be freed
S_PEAK = 2  # guests, agent: the most bytes held since the agent last reset this word
S_STEPS = 3  # agent, CUDA guest: iterations finished; goes down if some that the agent counted turn out to be none
S_BOUNDARY_NS = 4  # agent, CUDA guest: time of the newest boundary
S_RECALL = 5  # daemon: 0: go on; n: give the turn back at the first clean boundary with steps >= n; or LAPSED
S_LEASE = 6  # agent, CUDA guest: one of LEASE_*; a restarted daemon reads it
S_STALL_NS = 7  # agent: time spent waiting for input data, in all
S_FLAGS = 8  # guests, agent, daemon: FLAG_* bits; above NAMESPACE_SHIFT the pid namespace in which S_PID counts
S_PARKED = 9  # agent: bytes it moved to the host; 0 unless the lease word says parked
S_PENDING = 10  # guests: the part of S_LIVE that is asked for and not yet given
S_PASS = 11  # daemon, agent: to whom a recalled turn goes, as a pass; the agent sets only its bit PASSED
S_OFFER = 12  # daemon, agent: the pass by which this process may be rung; the agent puts 0 there when it was
S_STALL_HELD_NS = 13  # agent: the part of S_STALL_NS during which it had its turn
S_DEVICE_NS = 14  # CUDA guest: device time it paid for; without a compute limit, how long it had its turn
S_SPILLED = 15  # CUDA guest: bytes in managed memory, beyond the cap or the card (--oversubscribe); not in S_LIVE
S_PAUSE_FROM = 16  # agent: since when it has nothing on the device, with the bits of PAUSE_…; 0: it computes
S_PAUSE_NS = 17  # agent: how long it had its turn at such points and did nothing, waits for input not counted
S_TAKEN_NS = 18  # daemon: when it last took the turn of this process at such a point; 0: it waited for memory there
S_CHANGES = 19  # agent: turns whose first iterations were compared with its usual ones
S_CHANGE_NS = 20  # agent: what they took longer in all, and the wait for the device at the turns' ends; signed

# lease: what S_LEASE says
LEASE_NONE = 0  # it has no turn and wants none
LEASE_HELD = 1  # it has its turn
LEASE_ASKED = 2  # it asked for a turn
LEASE_PARKED = 3  # it asked for a turn, and its tensors are on the host

# flags: the bits of S_FLAGS
FLAG_METERED = 1  # the C meter, or the CUDA guest, counts this process's bytes
FLAG_BELL = 2  # it can be rung, and ring others
FLAG_PACED = 4  # the CUDA guest takes this process's turns, and keeps to the compute limit itself
FLAG_IDLE = 8  # the CUDA guest saw at a wait that all it launched is done; it launched nothing since
FLAG_ASIDE = 16  # the CUDA guest waits for room: S_PENDING is not part of S_LIVE meanwhile
FLAG_SOON = 32  # its optimizer's update runs, a short one: a recalled turn is given back in a moment
FLAG_AGENT = 64  # the Python agent takes this process's turns: the CUDA guest leaves them to it

# bits: parts of other words
LAPSED = 1 << 63  # in S_RECALL: the turn was taken away; ask before computing again
NAMESPACE_SHIFT = 32  # in S_FLAGS: where the number of the pid namespace begins
PAUSE_INPUT = 1  # in S_PAUSE_FROM: it waits for input
PAUSE_FORETOLD = 2  # …: what was before says that it will be idle
PAUSE_BITS = 3  # …: the two; the rest of it is the time
PRICE_ONE = 1024  # in H_PRICE: device time costs as much wall time
OWN_CAP = 1 << 63  # in H_CAPACITY: the cap is the user's (caps.py)
TRIAL_PID = (1 << 22) - 1  # in H_TRIAL: the pid; no pid is larger
PASS_SHARED = 1 << 22  # in a pass: its lane is shared; the bits below are the pid to ring
PASS_SERIAL_SHIFT = 23  # in a pass: where the serial of the grant begins
PASS_SERIAL_MASK = (1 << 39) - 1  # in a pass: how long that serial is
PASS_QUIET = 1 << 62  # in a pass: whoever uses it need not tell the daemon (B6)
PASSED = 1 << 63  # in a pass: it was used; in what a bell hears: only a knock

# times and counts: what all who take turns keep to, in Python (agent) and C (link.c, hot_path.c, bell.h, meter.c)
ORPHAN_PATIENCE_NS = 15_000_000_000  # without a daemon a waiting job goes on alone after this; runners restart one
STOPPED_PATIENCE_NS = 1_000_000_000  # the same after a daemon that was stopped: it took its socket with it
RETRY_NS = 1_000_000_000  # between two attempts of a program that went on alone to reach a daemon
RECONNECT_NS = 50_000_000  # between two attempts of a program that waits for a daemon
ATTACH_SECONDS = 10  # how long the answer to an Attach may take; a Grant may take for ever
RESAMPLE_STEPS = 32  # a power of two: every so many steps a job looks whether it has grown
RESAMPLE_MASK = RESAMPLE_STEPS - 1  # the bits of a step's number that are 0 then
GROWTH_PERCENT = 5  # a job that holds so much more than it said has grown
CHANGE_STEPS = 16  # so many iterations of a turn may be slow because others had the device before
STALL_NS = 3_000_000  # input that takes longer than this is worth giving the turn back for
BELL_LOOK_MS = 1000  # a signal that comes just before poll does not end it, and its handler must not wait for a turn
KNOCK_NS = 200_000_000  # between two knocks of an allocation that waits, and two looks of the daemon at it

# environment: what the daemon puts into the environment of a job
ENV_JOB = "CARPOOL_JOB"  # the job's id
ENV_SOCKET = "CARPOOL_SOCKET"  # the daemon's socket, for messages
ENV_PAGE = "CARPOOL_PAGE"  # the job's page
ENV_KNOCK = "CARPOOL_KNOCK"  # the socket for knocks, of allocations that wait
ENV_VERSION = "CARPOOL_VERSION"  # of the carpool that started the job
ENV_DEVICE_KIND = "CARPOOL_DEVICE_KIND"  # the kind of its device, by torch's word for it
ENV_TURNS_AT_LAUNCHES = "CARPOOL_TURNS_AT_LAUNCHES"  # set: the library in the program takes turns too, at launches
ENV_PARKED = "CARPOOL_PARKED"  # the directory for parked tensors of jobs on the CPU device
ENV_IS_CAPPED = "CARPOOL_IS_CAPPED"  # set: the job began with a cap of its user (--memory)
ENV_WAIT_MEMORY_NS = "CARPOOL_WAIT_MEMORY_NS"  # set: how long an allocation over the cap may wait for room
ENV_MAY_OVERSUBSCRIBE = "CARPOOL_MAY_OVERSUBSCRIBE"  # set: what goes beyond the cap may be managed memory
