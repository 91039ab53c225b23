#include "daemon/device/device.h"

const struct device_ops *const device_rows[] = { &device_host, &device_cuda, NULL };

struct mapping *mapping_ref(struct mapping *m)
{
    if (m)
        m->refs++;
    return m;
}

struct mapping *mapping_unref(struct mapping *m)
{
    if (m && --m->refs == 0) {
        if (m->before_unmap)
            m->before_unmap(m, m->before_unmap_owner);
        m->device->ops->unmap(m);
    }
    return NULL;
}

struct fence *fence_ref(struct fence *f)
{
    if (f)
        f->refs++;
    return f;
}

struct fence *fence_unref(struct fence *f)
{
    if (f && --f->refs == 0)
        f->device->ops->fence_free(f);
    return NULL;
}
