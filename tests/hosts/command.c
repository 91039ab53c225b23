#include "tests/hosts/command.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base.h"
#include "tests/end_to_end/fill.h"
#include "tests/end_to_end/reference.h"

static const char *const op_names[REFERENCE_OPS] = {
    [RUCCL_SUM] = "sum",   [RUCCL_PRODUCT] = "product", [RUCCL_MIN] = "min", [RUCCL_MAX] = "max",
    [RUCCL_MEAN] = "mean", [RUCCL_AND] = "and",         [RUCCL_OR] = "or",   [RUCCL_XOR] = "xor",
};

/* ---- values: each reader returns whether the text makes sense */

static bool read_text(const char *text, void *to, size_t room)
{
    if (strlen(text) >= room)
        return false;
    memcpy(to, text, strlen(text) + 1);
    return true;
}

static bool read_number(const char *text, void *to, size_t room)
{
    char *end;
    int64_t value; /* also negative ones; what is unsigned has no use for them */

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end || errno)
        return false;
    memcpy(to, &value, room); /* the lower bytes come first */
    return true;
}

static bool read_flag(const char *text, void *to, size_t room)
{
    const bool value = !strcmp(text, "1");

    memcpy(to, &value, room);
    return value || !strcmp(text, "0");
}

static bool read_dtype(const char *text, void *to, size_t room)
{
    for (enum ruccl_dtype d = RUCCL_F32; d < REFERENCE_DTYPES; d++)
        if (!strcmp(ruccl_dtype_name(d), text)) {
            memcpy(to, &d, room);
            return true;
        }
    return false;
}

static bool read_op(const char *text, void *to, size_t room)
{
    for (enum ruccl_op op = RUCCL_SUM; op < REFERENCE_OPS; op++)
        if (!strcmp(op_names[op], text)) {
            memcpy(to, &op, room);
            return true;
        }
    return false;
}

static const struct {
    const char *key;
    bool (*read)(const char *text, void *to, size_t room);
    size_t at, room;
} words[] = {
#define WORD(key, read, field)                                                                     \
    {                                                                                              \
        key, read, offsetof(struct command, field), sizeof(((struct command *)NULL)->field)        \
    }
    WORD("comm", read_text, comm),
    WORD("into", read_text, into),
    WORD("id", read_text, id),
    WORD("algorithm", read_text, algorithm),
    WORD("rank", read_number, rank),
    WORD("nranks", read_number, nranks),
    WORD("timeout", read_number, timeout_s),
    WORD("color", read_number, color),
    WORD("key", read_number, key),
    WORD("dtype", read_dtype, dtype),
    WORD("op", read_op, trial.op),
    WORD("count", read_number, trial.count),
    WORD("row", read_number, trial.row),
    WORD("root", read_number, trial.root),
    WORD("budget", read_number, trial.budget),
    WORD("in_place", read_flag, trial.in_place),
    WORD("spare", read_flag, trial.spare),
    WORD("shift", read_number, trial.shift),
    WORD("seed", read_number, seed),
    WORD("times", read_number, times),
    WORD("persistent", read_flag, persistent),
    WORD("plain", read_flag, plain),
    WORD("blocking", read_flag, blocking),
};

static bool read_word(char *word, struct command *c)
{
    char *value = strchr(word, '=');

    for (size_t i = 0; value && i < ARRAY_SIZE(words); i++)
        if (strlen(words[i].key) == (size_t)(value - word) &&
            !strncmp(words[i].key, word, (size_t)(value - word)))
            return words[i].read(value + 1, (char *)c + words[i].at, words[i].room);
    return false;
}

static void find_collective(struct command *c)
{
    for (unsigned kind = 0; kind < TRIAL_KINDS; kind++)
        if (!strcmp(scene_kind_name((enum trial_kind)kind), c->verb)) {
            c->is_collective = true;
            c->trial.kind = (enum trial_kind)kind;
        }
    c->trial.op = scene_reduces(c->trial.kind) ? RUCCL_SUM : TRIAL_NO_OP;
}

const char *command_parse(char *line, struct command *ret)
{
    char *at = NULL, *word = strtok_r(line, " \n", &at);

    *ret = (struct command){
        .trial = { .count = 1, .row = 1, .budget = RUCCL_NO_BUDGET },
        .dtype = RUCCL_F32,
        .seed = 1,
        .times = 1,
        .timeout_s = 60,
        .algorithm = "auto",
    };
    if (!word || !read_text(word, ret->verb, sizeof(ret->verb)))
        return word ? word : "";
    find_collective(ret);
    while ((word = strtok_r(NULL, " \n", &at)))
        if (!read_word(word, ret))
            return word;
    if (ret->persistent && !(ret->is_collective && scene_has_persistent(ret->trial.kind)))
        return "persistent";
    if (ret->nranks > REFERENCE_RANKS)
        return "nranks";
    return ret->trial.row == 0 || ret->times == 0 ? "0" : NULL;
}

/* ---- inputs and outputs */

uint64_t command_input_bytes(const struct command *c, const struct scene *s, uint32_t rank)
{
    const uint64_t bytes = (scene_in_count(s, rank) + c->trial.shift) * s->width;

    return (bytes + 7) / 8 * 8; /* fill_values() leaves no rest */
}

void command_fill_input(const struct command *c, const struct scene *s, uint32_t rank, uint8_t *ret)
{
    fill_values(c->dtype, 1000 * c->seed + rank + 1, command_input_bytes(c, s, rank), ret);
}

/* FNV-1a */
uint64_t command_digest(const struct scene *s, uint8_t *out, uint64_t bytes)
{
    uint64_t digest = 0xcbf29ce484222325;

    if (scene_reduces(s->trial->kind) && s->nranks > 1)
        reference_settle_nans(s->dtype, out, bytes / s->width);
    for (uint64_t i = 0; i < bytes; i++)
        digest = (digest ^ out[i]) * 0x100000001b3;
    return digest;
}
