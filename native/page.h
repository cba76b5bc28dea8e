/* The page a job shares with the daemon, made from src/carpool/wire/protocol.py by `make docs`.
 */
#ifndef CARPOOL_PAGE_H
#define CARPOOL_PAGE_H

/* versions */
#define CP_LAYOUT 4 /* of the page; raise it when a word of it changes */

/* page */
#define CP_MAGIC 0x314C4F4F50524143ull /* the bytes "CARPOOL1", little-endian */
#define CP_PAGE_BYTES 131072 /* of the file */
#define CP_SLOT_WORDS 32 /* of a slot, and of the header; those without a name are spare */
#define CP_TEXT_BYTES 512 /* at the end: the daemon's sentence about its newest denial (H_DENIED_NS), ended by a zero */
#define CP_TEXT_AT 130560 /* where that sentence begins */
#define CP_SLOTS 510 /* slots in the page; slot 0 is the header */
#define CP_FIRST_LENT 448 /* slots from here on are lent by the daemon, to processes without the meter */

/* header words */
#define CP_H_MAGIC 0 /* daemon: MAGIC, written last: a reader that sees it sees the rest */
#define CP_H_LAYOUT 1 /* daemon: LAYOUT; a page of another layout is not used */
#define CP_H_CAP 2 /* daemon: bytes all processes of the job may hold together; 0 is no cap */
#define CP_H_WAITERS 3 /* daemon: how many other jobs wait for this job's lane */
#define CP_H_SLOTS_USED 4 /* guests: one past the highest slot that anybody ever tried to claim */
#define CP_H_DENIED_COUNT 5 /* guests: allocations refused for the cap */
#define CP_H_DENIED_BYTES 6 /* guests: size of the newest refused allocation */
#define CP_H_LENT_USED 7 /* daemon: one past the highest slot ever lent; 0 if none was */
#define CP_H_CHECKPOINT 8 /* daemon: number of its newest order to write a checkpoint (the order is a file); 0 is none */
#define CP_H_PRICE 9 /* daemon: wall time that device time costs, PRICE_ONE is 1:1; 0 is no compute limit */
#define CP_H_PAID_UNTIL 10 /* CUDA guest: time up to which all launches are paid for; nobody of the job launches before it */
#define CP_H_DEVICE_NS 11 /* CUDA guest: device time of all processes the job ever had, as it was paid for */
#define CP_H_ENDED_NS 12 /* CUDA guest: when the latest kernel that they measured ended */
#define CP_H_CAPACITY 13 /* daemon: the most bytes that are worth waiting for, 0 is unknown; bit OWN_CAP: the cap is the user's */
#define CP_H_DENIED_NS 14 /* daemon: time of its newest denial; allocations that began to wait before it fail */
#define CP_H_TRIAL 15 /* CUDA guest: since when one of them runs a kernel never measured, its pid in TRIAL_PID; 0 is none */

/* slot words */
#define CP_S_PID 0 /* guests, daemon: the process whose slot this is, its owner; 0 is a free slot */
#define CP_S_LIVE 1 /* guests, agent: bytes held now; signed, because what was there before the meter may be freed */
#define CP_S_PEAK 2 /* guests, agent: the most bytes held since the agent last reset this word */
#define CP_S_STEPS 3 /* agent, CUDA guest: iterations finished; goes down if some that the agent counted turn out to be none */
#define CP_S_BOUNDARY_NS 4 /* agent, CUDA guest: time of the newest boundary */
#define CP_S_RECALL 5 /* daemon: 0: go on; n: give the turn back at the first clean boundary with steps >= n; or LAPSED */
#define CP_S_LEASE 6 /* agent, CUDA guest: one of LEASE_*; a restarted daemon reads it */
#define CP_S_STALL_NS 7 /* agent: time spent waiting for input data, in all */
#define CP_S_FLAGS 8 /* guests, agent, daemon: FLAG_* bits; above NAMESPACE_SHIFT the pid namespace in which S_PID counts */
#define CP_S_PARKED 9 /* agent: bytes it moved to the host; 0 unless the lease word says parked */
#define CP_S_PENDING 10 /* guests: the part of S_LIVE that is asked for and not yet given */
#define CP_S_PASS 11 /* daemon, agent: to whom a recalled turn goes, as a pass; the agent sets only its bit PASSED */
#define CP_S_OFFER 12 /* daemon, agent: the pass by which this process may be rung; the agent puts 0 there when it was */
#define CP_S_STALL_HELD_NS 13 /* agent: the part of S_STALL_NS during which it had its turn */
#define CP_S_DEVICE_NS 14 /* CUDA guest: device time it paid for; without a compute limit, how long it had its turn */
#define CP_S_SPILLED 15 /* CUDA guest: bytes in managed memory, beyond the cap or the card (--oversubscribe); not in S_LIVE */
#define CP_S_PAUSE_FROM 16 /* agent: since when it has nothing on the device, with the bits of PAUSE_…; 0: it computes */
#define CP_S_PAUSE_NS 17 /* agent: how long it had its turn at such points and did nothing, waits for input not counted */
#define CP_S_TAKEN_NS 18 /* daemon: when it last took the turn of this process at such a point; 0: it waited for memory there */
#define CP_S_CHANGES 19 /* agent: turns whose first iterations were compared with its usual ones */
#define CP_S_CHANGE_NS 20 /* agent: what they took longer in all, and the wait for the device at the turns' ends; signed */

/* lease */
#define CP_LEASE_NONE 0 /* it has no turn and wants none */
#define CP_LEASE_HELD 1 /* it has its turn */
#define CP_LEASE_ASKED 2 /* it asked for a turn */
#define CP_LEASE_PARKED 3 /* it asked for a turn, and its tensors are on the host */

/* flags */
#define CP_FLAG_METERED 1 /* the C meter, or the CUDA guest, counts this process's bytes */
#define CP_FLAG_BELL 2 /* it can be rung, and ring others */
#define CP_FLAG_PACED 4 /* the CUDA guest takes this process's turns, and keeps to the compute limit itself */
#define CP_FLAG_IDLE 8 /* the CUDA guest saw at a wait that all it launched is done; it launched nothing since */
#define CP_FLAG_ASIDE 16 /* the CUDA guest waits for room: S_PENDING is not part of S_LIVE meanwhile */
#define CP_FLAG_SOON 32 /* its optimizer's update runs, a short one: a recalled turn is given back in a moment */
#define CP_FLAG_AGENT 64 /* the Python agent takes this process's turns: the CUDA guest leaves them to it */

/* bits */
#define CP_LAPSED 0x8000000000000000ull /* in S_RECALL: the turn was taken away; ask before computing again */
#define CP_NAMESPACE_SHIFT 32 /* in S_FLAGS: where the number of the pid namespace begins */
#define CP_PAUSE_INPUT 1 /* in S_PAUSE_FROM: it waits for input */
#define CP_PAUSE_FORETOLD 2 /* …: what was before says that it will be idle */
#define CP_PAUSE_BITS 3 /* …: the two; the rest of it is the time */
#define CP_PRICE_ONE 1024 /* in H_PRICE: device time costs as much wall time */
#define CP_OWN_CAP 0x8000000000000000ull /* in H_CAPACITY: the cap is the user's (caps.py) */
#define CP_TRIAL_PID 4194303 /* in H_TRIAL: the pid; no pid is larger */
#define CP_PASS_SHARED 4194304 /* in a pass: its lane is shared; the bits below are the pid to ring */
#define CP_PASS_SERIAL_SHIFT 23 /* in a pass: where the serial of the grant begins */
#define CP_PASS_SERIAL_MASK 0x7FFFFFFFFFull /* in a pass: how long that serial is */
#define CP_PASS_QUIET 0x4000000000000000ull /* in a pass: whoever uses it need not tell the daemon (B6) */
#define CP_PASSED 0x8000000000000000ull /* in a pass: it was used; in what a bell hears: only a knock */

#endif
