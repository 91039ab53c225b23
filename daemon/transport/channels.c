#include "daemon/transport/channels.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void channels_init(struct channel_table *table)
{
    for (size_t i = 0; i < CHANNEL_BUCKETS; i++)
        list_init(&table->buckets[i]);
}

void channels_fini(const struct channel_table *table)
{
    for (size_t i = 0; i < CHANNEL_BUCKETS; i++)
        assert(list_empty(&table->buckets[i]));
}

/* Keys are random. */
static size_t bucket_of(const uint8_t *key)
{
    return key[0] % CHANNEL_BUCKETS;
}

int channels_open(struct channel_table *table, struct transport *t,
                  const uint8_t key[TRANSPORT_KEY_BYTES], struct channel **ret)
{
    struct channel_entry *c = calloc(1, sizeof(*c));

    if (!c)
        return -ENOMEM;
    c->base.transport = t;
    memcpy(c->base.key, key, TRANSPORT_KEY_BYTES);
    list_init(&c->arrived);
    list_append(&table->buckets[bucket_of(key)], &c->link);
    *ret = &c->base;
    return 0;
}

void channels_close(struct channel_entry *c)
{
    list_remove(&c->link);
    free(c);
}

struct channel_entry *channels_find(const struct channel_table *table, const uint8_t *key)
{
    struct channel_entry *c;

    list_for_each(c, &table->buckets[bucket_of(key)], link)
        if (!memcmp(c->base.key, key, TRANSPORT_KEY_BYTES))
            return c;
    return NULL;
}

struct channel_entry *channels_find_wanted(const struct channel_table *table, const uint8_t *key,
                                           uint64_t sequence)
{
    struct channel_entry *c = channels_find(table, key);

    return c && sequence > c->forgotten ? c : NULL;
}
