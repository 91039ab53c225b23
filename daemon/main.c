/* ruccld: puts the daemon together, in the order that its parts stand on each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/environment.h"
#include "daemon/log/log.h"
#include "daemon/network.h"
#include "daemon/server/server.h"
#include "daemon/server/service.h"
#include "shared/kernels.h"

#define EXIT_USAGE 2

/* The uid that files and sockets show for users who have none here. */
static uid_t overflow_uid(void)
{
    unsigned uid = 65534;
    FILE *f = fopen("/proc/sys/kernel/overflowuid", "re");

    if (!f)
        return uid;
    if (fscanf(f, "%u", &uid) != 1)
        uid = 65534;
    fclose(f);
    return uid;
}

static int serve(const struct server_parts *parts, const struct network *network, struct error *e)
{
    char host[256] = "localhost";
    struct server_parts whole = *parts;

    gethostname(host, sizeof(host) - 1);
    whole.comms = (struct comms_config){
        .engine = parts->engine,
        .now = service_now,
        .host = host,
        .node = parts->config->node,
        .overflow_uid = parts->overflow_uid,
        .id_lifetime_us = parts->config->id_lifetime_us,
        .chunk_bytes = parts->config->chunk_bytes,
        .max_comms = (uint32_t)parts->config->max_communicators,
        .transport = network->transport,
        .staging = network->staging,
        .table = &network->table,
    };
    return server_run(&whole, e);
}

static int run_with_network(struct server_parts *parts, const struct network *network,
                            struct error *e)
{
    int r;

    parts->transport = network->transport;
    r = engine_new(parts->device, network->transport, network->staging, &parts->engine);
    if (r < 0)
        return error_set_errno(e, -r, "making the engine");
    if (parts->gpus)
        engine_add_device(parts->engine, parts->gpus);
    r = serve(parts, network, e);
    if (r != -ERROR_ABORTED)
        engine_free(parts->engine);
    return r;
}

static int run_with_device(struct server_parts *parts, struct error *e)
{
    struct network network;
    int r = network_open(parts->config, &network, e);

    if (r < 0)
        return r;
    r = run_with_network(parts, &network, e);
    if (r != -ERROR_ABORTED)
        network_close(&network);
    return r;
}

/* All GPUs are those that there are, which may be none, and then `why` says so; GPUs that are named
 * must be there. Return: 0, or -code worded in `why`. */
static int open_gpus(struct server_parts *parts, struct error *why)
{
    const char *gpus = parts->config->gpus;
    int r;

    if (!strcmp(gpus, "none"))
        return 0;
    r = device_cuda.open(&(struct device_config){ .gpus = gpus }, &parts->gpus, why);
    if (r == 0 || strcmp(gpus, "all") != 0)
        return r;
    if (r != -ERROR_NOT_FOUND)
        log_warning(NULL, "no GPU is served: %s", why->text);
    parts->no_gpus = why->text;
    return 0;
}

/* Order matters: the server's parts end before the engine, the engine before network and devices.
 * Told to stop at once, whatever is in use stays. */
static int run(struct config *config, int argc, char **argv, struct error *e)
{
    struct server_parts parts = {
        .config = config,
        .argc = argc,
        .argv = argv,
        .kernels = kernel_row_best()->name,
        .overflow_uid = overflow_uid(),
    };
    struct error no_gpus = { 0 };
    int r;

    /* for the device's threads, which inherit it. Not everybody may, and it is about speed alone */
    setpriority(PRIO_PROCESS, 0, -(int)config->priority);
    r = device_host.open(&(struct device_config){ .nworkers = (unsigned)config->workers,
                                                  .spin_us = config->spin_us },
                         &parts.device, e);
    if (r < 0)
        return r;
    r = open_gpus(&parts, &no_gpus);
    setpriority(PRIO_PROCESS, 0, 0);

    if (r < 0)
        *e = no_gpus;
    else
        r = run_with_device(&parts, e);
    if (r == -ERROR_ABORTED)
        return r;
    if (parts.gpus)
        parts.gpus->ops->close(parts.gpus);
    parts.device->ops->close(parts.device);
    return r;
}

int main(int argc, char **argv)
{
    const int settled = HAVE_UCX ? environment_settle(argv) : 0;
    struct config config;
    struct error e = { 0 };
    int r = config_parse(argc, argv, &config, &e);

    if (r < 0) {
        fprintf(stderr, "ruccld: %s\n", e.text);
        return EXIT_USAGE;
    }
    if (r == CONFIG_PRINTED)
        return EXIT_SUCCESS;

    log_open((enum log_target)config.log_target, (enum log_level)config.log_level);
    if (settled < 0)
        log_warning(NULL, "UCX may follow UCX_* variables that are not the daemon's: %s",
                    strerror(-settled));
    r = run(&config, argc, argv, &e);
    if (r == 0)
        return EXIT_SUCCESS;
    log_error(NULL, "%s", e.text);
    if (r == -ERROR_ABORTED) /* threads may be using what an orderly exit would tear down */
        _exit(EXIT_FAILURE);
    return EXIT_FAILURE;
}
