/*
 * Recipes: all that follows from a descriptor alone, worked out once for every operation that has
 * it: what its tensors measure, and by which algorithm, in which chunks, pieces and steps it moves.
 * Not for the exchanges, whose chunks and steps follow from counts that every operation has its own
 * of: they take a choice (choice.h) each time.
 */
#ifndef DAEMON_PLAN_RECIPE_H
#define DAEMON_PLAN_RECIPE_H

#include "daemon/plan/choice.h"
#include "daemon/plan/contents.h"
#include "shared/list.h"

/* Immutable once decided, but for its references. */
struct recipe {
    struct list link; // recipes::list, while it is there
    unsigned refs;    /* the list's is one */

    struct descriptor d;          /* checked */
    uint64_t piece;               /* elements of a chunk, as asked for; 0: as tuned */
    uint64_t in_bytes, out_bytes; /* of a rank that has such a tensor */
    uint32_t width;               /* bytes an element; 1 where there are no tensors */

    /* from recipe_decide() on */
    bool decided;
    struct choice choice;
    /* this node's of a whole piece, of the last one of a chunk, and of the last of all; the same
     * plan where they are as long, an empty one where nothing moves */
    const struct plan *full, *last, *tail;
    struct plan plans[3];      /* what these point to */
    struct contents *contents; /* of `tail`, where that is all there is between nodes; else NULL */
};

struct recipe *recipe_ref(struct recipe *r);
/* Returns NULL; NULL is allowed. */
struct recipe *recipe_unref(struct recipe *r);

/*
 * Makes the choice and the plans of f->node; nothing to do where that has been done.
 * Return: 0, or -code worded in `e` with the recipe undecided.
 */
int recipe_decide(struct recipe *r, const struct frame *f, struct error *e);

/* The latest recipes, each decided by the same frame; the least recently used go first. */
struct recipes {
    struct list list; /* struct recipe, latest first */
    uint32_t n;
};

#define RECIPES_MAX       64u
#define RECIPES_STEPS_MAX 16384u

void recipes_init(struct recipes *l);
void recipes_fini(struct recipes *l);

/* The recipe of a descriptor with SHAPE_EXCHANGE aside, not checked yet, with a reference for the
 * caller; `piece`: see struct recipe. Return: 0, -ERROR_NO_MEMORY, or as descriptor_check(). */
int recipes_find(struct recipes *l, const struct descriptor *d, uint64_t piece, struct recipe **ret,
                 struct error *e);

#endif
