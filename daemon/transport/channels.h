/*
 * The open channels of a transport, by their keys: what rows have in common there. A row makes its
 * channels here, and decides itself what is forgotten and what that drops.
 */
#ifndef DAEMON_TRANSPORT_CHANNELS_H
#define DAEMON_TRANSPORT_CHANNELS_H

#include "daemon/transport/transport.h"

#define CHANNEL_BUCKETS 64u

struct channel_entry {
    struct channel base;
    struct list link;    // channel_table::buckets
    struct list arrived; /* the row's: what has come and nobody has asked for */
    uint64_t forgotten;  /* sequences up to this one concern nobody */
};

struct channel_table {
    struct list buckets[CHANNEL_BUCKETS]; // channel_entry::link
};

static inline struct channel_entry *channel_entry(struct channel *c)
{
    return container_of(c, struct channel_entry, base);
}

void channels_init(struct channel_table *table);
/* No channel may be left. */
void channels_fini(const struct channel_table *table);

/* Of this transport, whose table it is. Return: 0 or -ENOMEM. */
int channels_open(struct channel_table *table, struct transport *t,
                  const uint8_t key[TRANSPORT_KEY_BYTES], struct channel **ret);
/* Nothing of the row's may be in `arrived` any more. */
void channels_close(struct channel_entry *c);

/* NULL: none of that key is open. */
struct channel_entry *channels_find(const struct channel_table *table, const uint8_t *key);
/* The one where a message of that sequence is wanted; NULL: nobody will ever ask for it. */
struct channel_entry *channels_find_wanted(const struct channel_table *table, const uint8_t *key,
                                           uint64_t sequence);

#endif
