#include "tests/unit/walk.h"

#include <string.h>

static const struct {
    enum dtype_id dtype;
    enum operator_id op;
} types[] = {
    { DTYPE_F32, OPERATOR_SUM },  { DTYPE_F32, OPERATOR_MEAN },  { DTYPE_F16, OPERATOR_SUM },
    { DTYPE_F16, OPERATOR_MAX },  { DTYPE_BF16, OPERATOR_MEAN }, { DTYPE_BF16, OPERATOR_SUM },
    { DTYPE_I32, OPERATOR_SUM },  { DTYPE_I32, OPERATOR_MIN },   { DTYPE_F8E4M3, OPERATOR_SUM },
    { DTYPE_BF16, OPERATOR_MIN },
};

static bool kind_has_in_place(enum collective_id kind)
{
    return kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE ||
           kind == COLLECTIVE_BROADCAST || kind == COLLECTIVE_ALL_GATHER ||
           kind == COLLECTIVE_REDUCE_SCATTER;
}

struct operation operation_of(const struct algorithm *a, const struct placement *nodes, size_t type,
                              uint64_t n, uint64_t length)
{
    struct operation o = { .algorithm = a, .nodes = nodes, .depth = 1 + any_below(DEPTH_MAX) };

    o.w = world_of(a->kind, types[type].dtype, types[type].op, nodes, n);
    o.w.in_place = kind_has_in_place(a->kind) && any_below(2);
    o.width = dtype_get(types[type].dtype)->width;
    o.chunking = (struct chunking){ n, length, div_up_u64(n, length) };
    o.piece = any_below(2) ? length : 1 + any_below((uint32_t)length);
    o.budget = UINT64_MAX;
    return o;
}

bool fits(const struct algorithm *a, const struct placement *nodes, size_t type)
{
    const struct world w = world_of(a->kind, types[type].dtype, types[type].op, nodes, 1);

    return a->fits(&w.d, nodes->nnodes);
}

const struct algorithm *find_algorithm(enum collective_id kind, const char *name)
{
    const struct algorithm *a = algorithms;

    while (a->kind != kind || strcmp(a->name, name) != 0)
        a++;
    return a;
}

static bool is_of_blocks(const struct algorithm *a)
{
    const struct collective *c = collective_get(a->kind);

    return c->shape != SHAPE_EXCHANGE && !(c->flags & COLLECTIVE_PAIR);
}

void walk(try_fn try, uint32_t most_nodes)
{
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++)
        for (uint32_t nnodes = 2; nnodes <= most_nodes && is_of_blocks(a); nnodes++)
            for (uint32_t ranks = 0; ranks <= 3; ranks++) {
                _cleanup_(placement_freep) struct placement *p = placement_of(nnodes, ranks);

                for (size_t t = 0; t < ARRAY_SIZE(types); t++)
                    if (fits(a, p, t))
                        try(a, p, t);
            }
}

int walk_run_group(const struct CMUnitTest *tests, size_t n)
{
    int failed = _cmocka_run_group_tests("host", tests, n, daemons_open, daemons_close);

    daemons_use_gpus(50);
    failed += _cmocka_run_group_tests("gpus", tests, n, daemons_open, daemons_close);
    daemons_move_gpus(100);
    return failed + _cmocka_run_group_tests("straight", tests, n, daemons_open, daemons_close);
}
