/* A ruccld whose GPU is gpu_row.c's; of its own node alone. */
#include <stdio.h>

#include "daemon/config.h"
#include "daemon/log/log.h"
#include "daemon/server/server.h"
#include "daemon/server/service.h"
#include "tests/end_to_end/gpu_row.h"

static int serve(struct server_parts *parts, struct error *e)
{
    const struct config *config = parts->config;
    int r = engine_new(parts->device, NULL, NULL, &parts->engine);

    if (r < 0)
        return error_set_errno(e, -r, "making the engine");
    parts->comms = (struct comms_config){
        .engine = parts->engine,
        .now = service_now,
        .host = "localhost",
        .node = config->node,
        .overflow_uid = parts->overflow_uid,
        .id_lifetime_us = config->id_lifetime_us,
        .chunk_bytes = config->chunk_bytes,
        .max_comms = (uint32_t)config->max_communicators,
    };
    r = server_run(parts, e);
    engine_free(parts->engine);
    return r;
}

int main(int argc, char **argv)
{
    const struct device_config one = { .nworkers = 1 };
    struct config config;
    struct server_parts parts = {
        .config = &config, .argc = argc, .argv = argv, .kernels = "any", .overflow_uid = 65534
    };
    struct error e = { 0 };
    int r = config_parse(argc, argv, &config, &e);

    if (r == CONFIG_RUN) {
        log_open((enum log_target)config.log_target, (enum log_level)config.log_level);
        r = device_host.open(&one, &parts.device, &e);
    }
    if (r == 0)
        r = device_gpu_row.open(&one, &parts.gpus, &e);
    if (r == 0)
        r = serve(&parts, &e);
    if (r != 0) {
        fprintf(stderr, "gpu_ruccld: %s\n", e.text);
        return 1;
    }
    parts.gpus->ops->close(parts.gpus);
    parts.device->ops->close(parts.device);
    return 0;
}
