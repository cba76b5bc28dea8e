/* An example, which a test runs: it joins under the name in its first argument and takes as many turns as its second
 * says. The socket is that of CARPOOL_SOCKET, or the third argument. */
#include "carpool_join.h"

int main(int count, char **words) {
    char why[256], body[512];
    struct cp_frame frame;
    if (count < 3)
        return 2;
    if (!carpool_join_job(words[1], count > 3 ? words[3] : NULL, why, sizeof why)) {
        fprintf(stderr, "not joined: %s\n", why);
        return 1;
    }
    int line = carpool_connect(getenv(CP_ENV_SOCKET));
    snprintf(body, sizeof body, CP_ATTACH_BODY, getenv(CP_ENV_JOB), (int)getpid(), 0, "false", getenv(CP_ENV_VERSION),
             CP_PROTOCOL);
    free(carpool_send(line, CP_M_ATTACH, body) ? carpool_receive(line, &frame) : NULL);
    if (frame.kind != CP_M_ATTACHED)
        return 1;
    printf("%s %d\n", getenv(CP_ENV_JOB), (int)getpid());
    for (long turn = 1, turns = atol(words[2]); turn <= turns; turn++) {
        carpool_send(line, CP_M_ASK, "");
        do /* other messages (Park, Trim) need no answer of a program that keeps nothing on the device */
            free(carpool_receive(line, &frame));
        while (frame.kind != CP_M_GRANT);
        usleep(2000); /* here the program would compute */
        struct cp_frame back = {.kind = CP_M_RETURN, .word[CP_RETURN_STEPS] = (uint64_t)turn};
        carpool_move_all(line, &back, sizeof back, true);
    }
    return 0;
}
