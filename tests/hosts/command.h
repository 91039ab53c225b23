/*
 * Commands that a test gives to a rank, or to the reference: a verb and words "key=value", one line
 * each.
 *
 *     new_id
 *     join id=ID rank=R nranks=N [comm=NAME] [timeout=SECONDS] [algorithm=NAME]
 *     COLLECTIVE [comm=NAME] [what a command has] ...
 *     barrier, leave, abort [comm=NAME]
 *     split into=NAME color=C key=K [comm=NAME]
 *
 * COLLECTIVE is a name of scene_kind_name().
 */
#ifndef TESTS_HOSTS_COMMAND_H
#define TESTS_HOSTS_COMMAND_H

#include "tests/end_to_end/scene.h"

#define COMMAND_NAME_MAX 31

struct command {
    char verb[COMMAND_NAME_MAX + 1];
    bool is_collective; /* then `trial` holds it */
    struct trial trial;
    enum ruccl_dtype dtype;
    uint64_t seed;   /* of the inputs */
    uint64_t times;  /* >= 1: called so often in a row, and then waited for */
    bool persistent; /* made once and started so often */
    bool plain;      /* tensors in plain memory */
    bool blocking;   /* by the calls that wait: scene_call_blocking() */

    char comm[COMMAND_NAME_MAX + 1]; /* what this rank calls the communicator; "" is a name too */
    char into[COMMAND_NAME_MAX + 1];
    char id[RUCCL_ID_BYTES];
    char algorithm[COMMAND_NAME_MAX + 1];
    uint64_t rank, nranks, timeout_s;
    int64_t color, key;
};

/* Return: NULL, or the word that makes no sense; it is part of `line`, which is cut up. */
const char *command_parse(char *line, struct command *ret);

/* The input of `rank` for this command: scene_in_count() elements behind `shift` others. */
uint64_t command_input_bytes(const struct command *c, const struct scene *s, uint32_t rank);
void command_fill_input(const struct command *c, const struct scene *s, uint32_t rank,
                        uint8_t *ret);

/* What outputs are compared by: of equal bits, where NaNs that a reduction makes count as one. The
 * output may be changed. */
uint64_t command_digest(const struct scene *s, uint8_t *out, uint64_t bytes);

#endif
