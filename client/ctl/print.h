/* A status for people (text.c) and for programs (json.c). */
#ifndef CLIENT_CTL_PRINT_H
#define CLIENT_CTL_PRINT_H

#include <stdio.h>

#include "client/ctl/status.h"

struct json_t;

void print_text(const struct status *s, FILE *out);

/* One object, {daemon: {...}, sessions: [...], communicators: [{..., members: [...]}]}. */
int print_json(const struct status *s, FILE *out, struct error *e);

/* Writes and lets go of an object; NULL stands for one that memory ran out for. */
int json_write(struct json_t *root, FILE *out, struct error *e);

/* "1.5 GiB", "512 B"; "12.3 s", "850 ms", "3 h 12 min". Both return `buffer`. */
#define UNITS_BYTES 32u
const char *text_bytes(char buffer[UNITS_BYTES], uint64_t bytes);
const char *text_age(char buffer[UNITS_BYTES], uint64_t us);

#endif
