/* A C program that runs already becomes a job: `carpool_join_job("name", NULL, why, sizeof why)`.
 *
 * One header, to be copied or included; it needs native/protocol.h beside it, and nothing of carpool at run time. It
 * speaks the socket protocol of docs/protocol.md: one Call of the verb `join`, and Replies until one has the job's page.
 * Then the variables of the job are in the environment: what the program starts is part of the job, and `exec` of itself
 * lets carpool's library in. To take turns it attaches (docs/joining.md shows how).
 *
 * Threads: call it while the program has one, as setenv(3) wants. */
#ifndef CARPOOL_JOIN_H
#define CARPOOL_JOIN_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../protocol.h"

static bool carpool_move_all(int line, void *bytes, size_t count, bool is_sent) {
    for (size_t done = 0; done < count;) {
        ssize_t now = is_sent ? send(line, (char *)bytes + done, count - done, MSG_NOSIGNAL)
                              : recv(line, (char *)bytes + done, count - done, 0);
        if (now < 0 && errno == EINTR)
            continue;
        if (now <= 0)
            return false;
        done += (size_t)now;
    }
    return true;
}

/* A connection to the daemon; -1 and errno. */
static int carpool_connect(const char *path) {
    struct sockaddr_un door = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof door.sun_path)
        return errno = ENAMETOOLONG, -1;
    memcpy(door.sun_path, path, strlen(path));
    int line = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (line >= 0 && connect(line, (struct sockaddr *)&door, sizeof door) != 0) {
        close(line);
        return -1;
    }
    return line;
}

/* One frame with its body, which ends with a zero and is the caller's to free; NULL if the daemon closed. */
static char *carpool_receive(int line, struct cp_frame *frame) {
    if (!carpool_move_all(line, frame, sizeof *frame, false) || frame->length > CP_REPLY_MAX)
        return NULL;
    char *body = calloc(1, (size_t)frame->length + 1);
    if (body && !carpool_move_all(line, body, frame->length, false)) {
        free(body);
        return NULL;
    }
    return body;
}

static bool carpool_send(int line, uint16_t kind, const char *body) {
    struct cp_frame frame = {.kind = kind, .length = (uint32_t)strlen(body)};
    return carpool_move_all(line, &frame, sizeof frame, true) && carpool_move_all(line, (void *)body, frame.length, true);
}

/* The text of the field `"name":"…"` of a body; what is escaped in it stays so, and carpool's ids and paths are not. */
static bool carpool_field(const char *body, const char *name, char *out, size_t size) {
    char mark[64];
    snprintf(mark, sizeof mark, "\"%s\":\"", name);
    const char *from = strstr(body, mark), *to = from ? from + strlen(mark) : NULL;
    size_t count = 0;
    for (; to && *to && *to != '"' && count + 1 < size; count++, to++)
        out[count] = *to;
    out[count] = 0;
    return count > 0;
}

/* Put each `"NAME":"value"` of the object behind `"part":{` into the environment, in front of what is there if asked. */
static void carpool_take_variables(const char *body, const char *part, bool in_front) {
    char mark[32], name[64], value[4096], joined[8192];
    snprintf(mark, sizeof mark, "\"%s\":{", part);
    const char *at = strstr(body, mark), *end = at ? strchr(at, '}') : NULL;
    at = at ? strchr(at, '{') + 1 : NULL;
    while (at && at < end && sscanf(at, "\"%63[^\"]\":\"%4095[^\"]\"", name, value) == 2) {
        const char *before = in_front ? getenv(name) : NULL;
        snprintf(joined, sizeof joined, before && *before ? "%s:%s" : "%s", value, before);
        setenv(name, joined, 1);
        at = strchr(at, ',');
        at = at && at < end ? at + 1 : NULL;
    }
}

/* Become a job of this name, and wait until it is let in. `socket_path` NULL: the one that CARPOOL_SOCKET names. True if
 * the process is in a job now, or was before; else `why` says why not, and the program goes on as it is. */
static bool carpool_join_job(const char *name, const char *socket_path, char *why, size_t size) {
    const char *inside = getenv(CP_ENV_JOB), *path = socket_path ? socket_path : getenv(CP_ENV_SOCKET);
    char call[1024], page[4096];
    struct cp_frame frame;
    bool is_in = false;
    if (inside && *inside)
        return true;
    int line = path ? carpool_connect(path) : -1;
    if (line < 0)
        return snprintf(why, size, "no daemon answers at %s", path ? path : "(" CP_ENV_SOCKET " is not set)"), false;
    snprintf(call, sizeof call,
             "{\"verb\":\"join\",\"arguments\":{\"spec\":{\"name\":\"%s\"},\"argv\":[\"%s\"],\"cwd\":\"/\",\"pid\":%d},"
             "\"version\":\"%s\",\"protocol\":%d}",
             name, name, (int)getpid(), "c", CP_PROTOCOL);
    snprintf(why, size, "the daemon at %s closed the connection", path);
    char *body = carpool_send(line, CP_M_CALL, call) ? carpool_receive(line, &frame) : NULL;
    while (body) { /* answers without a page say why it has to wait */
        if (frame.kind != CP_M_REPLY || carpool_field(body, "error", why, size)) {
            carpool_field(body, "reason", why, size); /* of a Refuse */
            break;
        }
        if ((is_in = carpool_field(body, "page", page, sizeof page)))
            break;
        free(body);
        body = carpool_receive(line, &frame);
    }
    if (is_in) {
        carpool_take_variables(body, "set", false);
        carpool_take_variables(body, "prepend", true);
    }
    bool keeps = is_in && strstr(body, "\"keeps\":true");
    free(body);
    if (!keeps) /* the daemon sees this process; else the job lives as long as the connection */
        close(line);
    return is_in;
}

#endif
