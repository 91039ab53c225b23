#include "daemon/network.h"

#include <netdb.h>

#include "daemon/server/address.h"
#include "daemon/tuning.h"

/* The transport's own address is the listener's, or, where that means all of them, the one that
 * others are told. In numbers: a network device is found by it. */
static int own_address(const struct config *config, char ret[NI_MAXHOST], struct error *e)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    struct address address;
    struct addrinfo *found;
    int r;

    r = address_parse(config->listen, &address, e);
    if (r == 0 && address_is_wildcard(&address))
        r = address_to_advertise(config->listen, config->advertise, &address, e);
    if (r < 0)
        return r;
    r = getaddrinfo(address.host, NULL, &hints, &found);
    if (r == 0) {
        r = getnameinfo(found->ai_addr, found->ai_addrlen, ret, NI_MAXHOST, NULL, 0,
                        NI_NUMERICHOST);
        freeaddrinfo(found);
    }
    if (r)
        return error_set(e, ERROR_SYSTEM, "looking up this node's address %s: %s", address.host,
                         gai_strerror(r));
    return 0;
}

static int open_transport(const struct config *config, struct network *n, struct error *e)
{
    char address[NI_MAXHOST];
    const struct transport_config how = { .devices = config->devices,
                                          .address = address,
                                          .ports = config->ports };
    int r = own_address(config, address, e);

    return r < 0 ? r : transport_open(config->transport, &how, &n->transport, e);
}

static int make_table(const struct config *config, struct table *ret, struct error *e)
{
    table_init(ret, config->chunk_bytes);
    return *config->tuning ? tuning_read(config->tuning, ret, e) : 0;
}

int network_open(const struct config *config, struct network *ret, struct error *e)
{
    int r;

    *ret = (struct network){ 0 };
    r = make_table(config, &ret->table, e);
    if (r < 0)
        return r;
    if (!*config->listen) /* a mistake would come to light on the day that it listens */
        return transport_check(config->transport, e);
    r = open_transport(config, ret, e);
    if (r == 0 && staging_new(config->max_staging, &ret->staging) < 0)
        r = error_set(e, ERROR_NO_MEMORY, "no memory for staging");
    if (r < 0)
        network_close(ret);
    return r;
}

void network_close(struct network *n)
{
    n->staging = staging_free(n->staging);
    if (n->transport)
        n->transport->ops->close(n->transport);
    n->transport = NULL;
}
