/* The messages, and what all who take turns keep to, made from src/carpool/wire/protocol.py and
 * messages.py by `make docs`. */
#ifndef CARPOOL_PROTOCOL_H
#define CARPOOL_PROTOCOL_H

#include <stdint.h>

/* versions */
#define CP_PROTOCOL 5 /* of the messages; raise it when one of them changes */
#define CP_HOT_PATH_CONTRACT 11 /* between native/hot_path.c and agent/turns/hot_path.py; raise it when either changes */
#define CP_FIND_AND_COPY_CONTRACT 2 /* between native/find_and_copy.c and agent/parking/find_and_copy.py; the same */
#define CP_SWAP_CONTRACT 3 /* between native/swap.c and wire/page.py; the same */

/* frame */
#define CP_FRAME_WORDS 4 /* words in a frame */
#define CP_FRAME_BYTES 40 /* of a frame */
#define CP_BODY_MAX 4194304 /* bytes of a body; the environment of a submitted job is the largest thing that travels */
#define CP_REPLY_MAX 268435456 /* bytes of the body of a Reply, which only a client reads; a list of 5,000 jobs has 12 MiB */

/* times and counts */
#define CP_ORPHAN_PATIENCE_NS 15000000000ull /* without a daemon a waiting job goes on alone after this; runners restart one */
#define CP_STOPPED_PATIENCE_NS 1000000000 /* the same after a daemon that was stopped: it took its socket with it */
#define CP_RETRY_NS 1000000000 /* between two attempts of a program that went on alone to reach a daemon */
#define CP_RECONNECT_NS 50000000 /* between two attempts of a program that waits for a daemon */
#define CP_ATTACH_SECONDS 10 /* how long the answer to an Attach may take; a Grant may take for ever */
#define CP_RESAMPLE_STEPS 32 /* a power of two: every so many steps a job looks whether it has grown */
#define CP_RESAMPLE_MASK 31 /* the bits of a step's number that are 0 then */
#define CP_GROWTH_PERCENT 5 /* a job that holds so much more than it said has grown */
#define CP_CHANGE_STEPS 16 /* so many iterations of a turn may be slow because others had the device before */
#define CP_STALL_NS 3000000 /* input that takes longer than this is worth giving the turn back for */
#define CP_BELL_LOOK_MS 1000 /* a signal that comes just before poll does not end it, and its handler must not wait for a turn */
#define CP_KNOCK_NS 200000000 /* between two knocks of an allocation that waits, and two looks of the daemon at it */

/* environment */
#define CP_ENV_JOB "CARPOOL_JOB" /* the job's id */
#define CP_ENV_SOCKET "CARPOOL_SOCKET" /* the daemon's socket, for messages */
#define CP_ENV_PAGE "CARPOOL_PAGE" /* the job's page */
#define CP_ENV_KNOCK "CARPOOL_KNOCK" /* the socket for knocks, of allocations that wait */
#define CP_ENV_VERSION "CARPOOL_VERSION" /* of the carpool that started the job */
#define CP_ENV_DEVICE_KIND "CARPOOL_DEVICE_KIND" /* the kind of its device, by torch's word for it */
#define CP_ENV_TURNS_AT_LAUNCHES "CARPOOL_TURNS_AT_LAUNCHES" /* set: the library in the program takes turns too, at launches */
#define CP_ENV_PARKED "CARPOOL_PARKED" /* the directory for parked tensors of jobs on the CPU device */
#define CP_ENV_IS_CAPPED "CARPOOL_IS_CAPPED" /* set: the job began with a cap of its user (--memory) */
#define CP_ENV_WAIT_MEMORY_NS "CARPOOL_WAIT_MEMORY_NS" /* set: how long an allocation over the cap may wait for room */
#define CP_ENV_MAY_OVERSUBSCRIBE "CARPOOL_MAY_OVERSUBSCRIBE" /* set: what goes beyond the cap may be managed memory */

struct cp_frame {
    uint16_t kind, zero;
    uint32_t length;
    uint64_t word[CP_FRAME_WORDS];
};
_Static_assert(sizeof(struct cp_frame) == CP_FRAME_BYTES, "a frame has no gaps");

/* Attach, job to daemon: I am a process of this job and take turns. Answered by Attached or Refuse. */
#define CP_M_ATTACH 1
#define CP_ATTACH_BODY "{\"job\":\"%s\",\"pid\":%d,\"slot\":%d,\"holding\":%s,\"version\":\"%s\",\"protocol\":%d}"

/* Attached, daemon to job: Welcome; this is your slot of the page, and your pid as the daemon sees it, by which you can be rung. */
#define CP_M_ATTACHED 2
#define CP_ATTACHED_SLOT 0
#define CP_ATTACHED_PID 1

/* Ask, job to daemon: I want a turn. Answered by Grant, sooner or later. */
#define CP_M_ASK 3

/* Grant, daemon to job: The turn is yours. */
#define CP_M_GRANT 4
#define CP_GRANT_LANE_BYTES 0
#define CP_GRANT_IS_SHARED 1
#define CP_GRANT_SERIAL 2

/* Return, job to daemon: My turn is over; with `wants_more` this is an Ask too. */
#define CP_M_RETURN 5
#define CP_RETURN_STEPS 0
#define CP_RETURN_WANTS_MORE 1
#define CP_RETURN_PASSED 2

/* Measured, job to daemon: This is what I need between turns and inside one. */
#define CP_M_MEASURED 6
#define CP_MEASURED_PERSISTENT_BYTES 0
#define CP_MEASURED_EPHEMERAL_BYTES 1
#define CP_MEASURED_OVERHEAD_BYTES 2
#define CP_MEASURED_STEP_NS 3
#define CP_MEASURED_BODY "{\"steps_total\":%d}"

/* Detach, job to daemon: I go on without taking turns. */
#define CP_M_DETACH 7
#define CP_DETACH_BODY "{\"reason\":\"%s\"}"

/* Enter, runner to daemon: Here is a new job (empty id), or I am the runner of a known one. Answered by Start, Wait or Refuse. */
#define CP_M_ENTER 8

/* Start, daemon to runner: Start the program, with this added to its environment. */
#define CP_M_START 9

/* Wait, daemon to runner: A word for the user: why the program is not started yet or, once it runs, which limit of it is not kept. */
#define CP_M_WAIT 10
#define CP_WAIT_BODY "{\"job\":\"%s\",\"reason\":\"%s\"}"

/* Refuse, daemon to any: No, for this reason. */
#define CP_M_REFUSE 11
#define CP_REFUSE_BODY "{\"reason\":\"%s\"}"

/* Started, runner to daemon: The program runs. */
#define CP_M_STARTED 12
#define CP_STARTED_PID 0

/* Exited, runner to daemon: The program ended with this code, or by this signal. */
#define CP_M_EXITED 13
#define CP_EXITED_CODE 0
#define CP_EXITED_SIGNAL 1

/* Stop, daemon to runner: End the program. */
#define CP_M_STOP 14

/* Call, client to daemon: One question or order. Answered by one Reply. */
#define CP_M_CALL 15

/* Reply, daemon to client: The answer; or, in `error`, a sentence why there is none, and `code` is the exit code for it. */
#define CP_M_REPLY 16

/* Park, daemon to job: Move your tensors to the host, at most so many bytes. Answered by Parked. */
#define CP_M_PARK 17
#define CP_PARK_LIMIT_BYTES 0

/* Parked, job to daemon: They are there; or, with a reason, nothing was moved. */
#define CP_M_PARKED 18
#define CP_PARKED_MOVED_BYTES 0
#define CP_PARKED_MOVE_NS 1
#define CP_PARKED_BODY "{\"reason\":\"%s\",\"kept\":\"%s\"}"

/* Unpark, daemon to job: Bring them back. Answered by Unparked; a Grant says the same. */
#define CP_M_UNPARK 19

/* Unparked, job to daemon: Everything is where it was; or, with a reason, everything is still on the host. */
#define CP_M_UNPARKED 20
#define CP_UNPARKED_MOVE_NS 0
#define CP_UNPARKED_BODY "{\"reason\":\"%s\"}"

/* Trim, daemon to job: Give back what you can spare. Answered by Measured. */
#define CP_M_TRIM 21

/* Gradients, job to daemon: So much of what I keep between turns is gradients, which the program drops when it clears them. */
#define CP_M_GRADIENTS 22
#define CP_GRADIENTS_GRADIENT_BYTES 0

#endif
