/* The page a job shares with the daemon, made from src/carpool/wire/page.py by `make docs`.
 * The rules, and what each word means, stand there. */
#ifndef CARPOOL_PAGE_H
#define CARPOOL_PAGE_H

#define CP_MAGIC 0x314C4F4F50524143ull
#define CP_LAYOUT 3
#define CP_PAGE_BYTES 65536
#define CP_SLOT_WORDS 16
#define CP_TEXT_BYTES 512
#define CP_TEXT_AT 65024
#define CP_SLOTS 508
#define CP_FIRST_LENT 448
#define CP_H_MAGIC 0
#define CP_H_LAYOUT 1
#define CP_H_CAP 2
#define CP_H_WAITERS 3
#define CP_H_SLOTS_USED 4
#define CP_H_DENIED_COUNT 5
#define CP_H_DENIED_BYTES 6
#define CP_H_LENT_USED 7
#define CP_H_CHECKPOINT 8
#define CP_H_PRICE 9
#define CP_H_PAID_UNTIL 10
#define CP_H_DEVICE_NS 11
#define CP_H_ENDED_NS 12
#define CP_H_CAPACITY 13
#define CP_H_DENIED_NS 14
#define CP_H_TRIAL 15
#define CP_S_PID 0
#define CP_S_LIVE 1
#define CP_S_PEAK 2
#define CP_S_STEPS 3
#define CP_S_BOUNDARY_NS 4
#define CP_S_RECALL 5
#define CP_S_LEASE 6
#define CP_S_STALL_NS 7
#define CP_S_FLAGS 8
#define CP_S_PARKED 9
#define CP_S_PENDING 10
#define CP_S_PASS 11
#define CP_S_OFFER 12
#define CP_S_STALL_HELD_NS 13
#define CP_S_DEVICE_NS 14
#define CP_S_SPILLED 15
#define CP_LEASE_NONE 0
#define CP_LEASE_HELD 1
#define CP_LEASE_ASKED 2
#define CP_LEASE_PARKED 3
#define CP_LAPSED 0x8000000000000000ull
#define CP_FLAG_METERED 1
#define CP_FLAG_BELL 2
#define CP_FLAG_PACED 4
#define CP_FLAG_IDLE 8
#define CP_FLAG_ASIDE 16
#define CP_FLAG_SOON 32
#define CP_FLAG_AGENT 64
#define CP_NAMESPACE_SHIFT 32
#define CP_PRICE_ONE 1024
#define CP_OWN_CAP 0x8000000000000000ull
#define CP_TRIAL_PID 4194303
#define CP_PASS_SHARED 4194304
#define CP_PASS_SERIAL_SHIFT 23
#define CP_PASS_SERIAL_MASK 0x7FFFFFFFFFull
#define CP_PASS_QUIET 0x4000000000000000ull
#define CP_PASSED 0x8000000000000000ull
#define CP_PROTOCOL 3

#endif
