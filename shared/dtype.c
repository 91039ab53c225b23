#include "shared/dtype.h"

#include <string.h>

#include "shared/error.h"

static const struct dtype dtypes[DTYPE_END] = {
#define DTYPE_ROW(ID, tname, number, twidth, tclass, acc)                                          \
    [number] = { #tname, twidth, DTYPE_CLASS_##tclass, DTYPE_##acc },
    DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};

const struct dtype *dtype_get(uint32_t id)
{
    return id < DTYPE_END && dtypes[id].name ? &dtypes[id] : NULL;
}

enum dtype_id dtype_by_name(const char *name)
{
    for (uint32_t i = 1; i < DTYPE_END; i++)
        if (dtypes[i].name && !strcmp(dtypes[i].name, name))
            return (enum dtype_id)i;
    return DTYPE_NONE;
}

void text_add_dtypes(struct text *t)
{
    for (uint32_t i = 1; i < DTYPE_END; i++)
        if (dtypes[i].name)
            text_add_item(t, dtypes[i].name);
}
