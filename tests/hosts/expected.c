/*
 * What a collective must come to, by the reference: reads the commands that ranks get, and answers
 * each with a line of one digest for every rank, or "-" for a rank whose output stays as it is.
 *
 *     expected NODE,NODE,...        the number of the node that each rank is on
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/end_to_end/reference.h"
#include "tests/hosts/command.h"

struct placement {
    uint32_t nranks;
    uint32_t node_of[REFERENCE_RANKS];
};

static void *take(uint64_t bytes)
{
    void *memory = calloc(1, bytes + 1);

    if (!memory)
        abort();
    return memory;
}

static uint8_t *reduce(const struct scene *s, const struct placement *p, uint8_t *const *given)
{
    const uint64_t count = scene_in_count(s, 0) + s->trial->shift;
    uint8_t *reduced = take(count * s->width);

    reference_reduce_placed(s->dtype, s->trial->op, (const void *const *)given, p->node_of,
                            p->nranks, count, reduced);
    return reduced;
}

static uint64_t digest_output(const struct scene *s, uint32_t rank, uint8_t *const *given,
                              const uint8_t *reduced)
{
    struct scene_piece pieces[REFERENCE_RANKS];
    const uint32_t n = scene_pieces(s, rank, given, reduced, pieces);
    uint64_t bytes = 0, digest;
    uint8_t *out = take(scene_out_span(s, rank).bytes);

    for (uint32_t i = 0; i < n; i++) {
        memcpy(out + bytes, pieces[i].bytes, pieces[i].count * s->width);
        bytes += pieces[i].count * s->width;
    }
    digest = command_digest(s, out, bytes);
    free(out);
    return digest;
}

static void answer(const struct command *c, const struct placement *p)
{
    const struct scene s = scene_of(&c->trial, c->dtype, p->nranks);
    uint8_t *given[REFERENCE_RANKS], *reduced = NULL;

    for (uint32_t r = 0; r < p->nranks; r++) {
        given[r] = take(command_input_bytes(c, &s, r));
        command_fill_input(c, &s, r, given[r]);
    }
    if (scene_reduces(c->trial.kind))
        reduced = reduce(&s, p, given);
    for (uint32_t r = 0; r < p->nranks; r++)
        if (scene_writes(&s, r))
            printf("%016" PRIx64 " ", digest_output(&s, r, given, reduced));
        else
            printf("- ");
    printf("\n");
    fflush(stdout);
    for (uint32_t r = 0; r < p->nranks; r++)
        free(given[r]);
    free(reduced);
}

static struct placement read_placement(char *text)
{
    struct placement p = { 0 };
    char *at = NULL;

    for (char *word = strtok_r(text, ",", &at); word; word = strtok_r(NULL, ",", &at)) {
        if (p.nranks == REFERENCE_RANKS) {
            fprintf(stderr, "expected: more than %d ranks\n", REFERENCE_RANKS);
            exit(2);
        }
        p.node_of[p.nranks++] = (uint32_t)atoi(word);
    }
    return p;
}

int main(int argc, char **argv)
{
    char *line = NULL;
    size_t room = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: expected NODE,NODE,...\n");
        return 2;
    }

    const struct placement p = read_placement(argv[1]);

    while (getline(&line, &room, stdin) > 0) {
        struct command c;
        const char *odd = command_parse(line, &c);

        if (odd || !c.is_collective) {
            fprintf(stderr, "expected: '%s' makes no sense\n", odd ? odd : c.verb);
            return 2;
        }
        answer(&c, &p);
    }
    free(line);
    return 0;
}
