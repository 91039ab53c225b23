#include "daemon/config.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <systemd/sd-id128.h>

#include "daemon/keyfile.h"
#include "daemon/value.h"
#include "shared/socket_path.h"

struct option_row {
    const char *section, *name;
    enum value_type type;
    size_t offset;
    const char *fallback;
    uint64_t min, max; /* numbers only */
    bool live;         /* taken over by a reload */
    const char *doc;
};

#define AT(field) offsetof(struct config, field)
#define KIB       1024ull
#define TIB       (KIB * KIB * KIB * KIB)

/* clang-format off */
static const struct option_row rows[] = {
    { "daemon", "socket", TYPE_PATH, AT(socket), "", 0, 0, false,
      "The socket to listen on. Empty: $RUCCL_SOCKET, or else /run/ruccl/ruccld.sock for root and "
      "$XDG_RUNTIME_DIR/ruccl/ruccld.sock for others." },
    { "daemon", "socket_mode", TYPE_MODE, AT(socket_mode), "0666", 0, 0777, false,
      "Who may connect. Whoever may still meets only communicators of their own uid." },
    { "daemon", "node", TYPE_UUID, AT(node), "", 0, 0, false,
      "The node's name in ids and status, a UUID. Empty: derived from /etc/machine-id, or random." },
    { "daemon", "workers", TYPE_COUNT, AT(workers), "0", 0, 1024, false,
      "Threads that move and reduce bytes. 0: one per CPU." },
    { "daemon", "priority", TYPE_COUNT, AT(priority), "8", 0, 20, false,
      "Steps of niceness by which the daemon goes before others while it works on more than a little, "
      "where the system lets it: ranks that wait take turns with it on the same CPUs." },
    { "daemon", "chunk_bytes", TYPE_BYTES, AT(chunk_bytes), "4MiB", 4 * KIB, TIB, false,
      "Bytes of a rank's block in one chunk of a collective that has no budget." },
    { "daemon", "gpus", TYPE_GPUS, AT(gpus), "all", 0, 0, false,
      "The GPUs whose memory the daemon serves: all that there are, none, or their UUIDs, separated by "
      "commas: it does not start without one that is named." },
    { "daemon", "rings", TYPE_SWITCH, AT(rings), "yes", 0, 0, false,
      "Requests and replies by shared memory, which is quicker; no: all of them by the socket." },
    { "daemon", "slates", TYPE_SWITCH, AT(slates), "yes", 0, 0, false,
      "Small blocking calls of a communicator on one node without the daemon, in memory that all of "
      "its ranks see; not without rings." },
    { "daemon", "spin", TYPE_DURATION, AT(spin_us), "200us", 0, 10 * MS, false,
      "How long the daemon, its helping workers and a waiting client look for more before they sleep." },
    { "daemon", "drain_timeout", TYPE_DURATION, AT(drain_timeout_us), "10s", 0, HOUR, true,
      "How long a daemon told to stop lets operations finish before it fails them." },
    { "daemon", "id_lifetime", TYPE_DURATION, AT(id_lifetime_us), "10min", 1000 * MS, 24 * HOUR, false,
      "How long a communicator id that nobody has joined stays good." },
    { "daemon", "hello_timeout", TYPE_DURATION, AT(hello_timeout_us), "10s", 10 * MS, HOUR, true,
      "How long a connection may stay silent before it has said hello." },

    { "network", "listen", TYPE_ADDRESS, AT(listen), "", 0, 0, false,
      "Where other nodes' daemons connect to this one: host:port or [v6]:port, a numeric address or a "
      "name, 0.0.0.0 or [::] for all of this host's. Empty: this daemon serves its own node alone." },
    { "network", "advertise", TYPE_ADDRESS, AT(advertise), "", 0, 0, false,
      "The address that others are told, in communicator ids too. Empty: that of `listen`, unless it is "
      "all of them." },
    { "network", "cluster_key", TYPE_FILE, AT(cluster_key), "", 0, 0, false,
      "The file with the secret that all daemons of the cluster share, 32 to 4096 bytes that other users "
      "cannot read. Empty: the systemd credential of that name, or none: only daemons of this host then." },
    { "network", "peer_timeout", TYPE_DURATION, AT(peer_timeout_us), "5s", 100 * MS, HOUR, false,
      "How long another daemon may be silent while something with it is unfinished." },
    { "network", "connect_timeout", TYPE_DURATION, AT(connect_timeout_us), "10s", 100 * MS, HOUR, false,
      "How long a connection with another daemon may take to be made and proven." },
    { "network", "max_peer_strangers", TYPE_COUNT, AT(max_peer_strangers), "64", 1, 1 << 16, false,
      "Connections that have not proven the cluster's key yet; beyond it the oldest goes." },
    { "network", "transport", TYPE_NAMES, AT(transport), "auto", 0, 0, false,
      "What moves tensors between nodes: a transport's name, or auto, the first that works here. The same "
      "on all nodes." },
    { "network", "devices", TYPE_NAMES, AT(devices), "", 0, 0, false,
      "The network devices that move tensors, in the transport's own words. Empty: its choice." },
    { "network", "ports", TYPE_PORTS, AT(ports), "", 0, 0, false,
      "The ports that the transport listens at. Empty: any." },
    { "network", "tuning", TYPE_FILE, AT(tuning), "", 0, 0, false,
      "The file with what this cluster's links and memory do, by which algorithms are chosen. Empty: "
      "built-in figures." },
    { "network", "max_staging", TYPE_BYTES, AT(max_staging), "1GiB", 1024 * KIB, 1024 * TIB, false,
      "Memory for what is under way between nodes, of all communicators." },

    { "log", "log_level", TYPE_LEVEL, AT(log_level), "notice", 0, 0, true,
      "The least important events to log: error, warning, notice, info or debug." },
    { "log", "log_target", TYPE_TARGET, AT(log_target), "auto", 0, 0, false,
      "auto (the journal where the service manager gives one, else stderr), stderr or journal." },

    { "limits", "max_sessions", TYPE_COUNT, AT(max_sessions), "4096", 1, 1 << 20, true,
      "Connections of one uid." },
    { "limits", "max_strangers", TYPE_COUNT, AT(max_strangers), "256", 1, 1 << 16, true,
      "Connections of one uid that have not said hello yet." },
    { "limits", "max_regions", TYPE_COUNT, AT(max_regions), "65536", 1, 1 << 24, true,
      "Memory regions registered by one uid." },
    { "limits", "max_region_bytes", TYPE_BYTES, AT(max_region_bytes), "0", 0, 1024 * TIB, true,
      "Bytes of all regions of one uid in host memory, backed by it or not. 0: the node's memory." },
    { "limits", "max_gpu_bytes", TYPE_BYTES, AT(max_gpu_bytes), "0", 0, 1024 * TIB, true,
      "Bytes of all regions of one uid in the memory of GPUs. 0: no limit." },
    { "limits", "max_fds", TYPE_COUNT, AT(max_fds), "16384", 3, 1 << 20, true,
      "File descriptors held for one uid: two per connection, and one for all." },
    { "limits", "max_communicators", TYPE_COUNT, AT(max_communicators), "4096", 1, 1 << 20, true,
      "Communicators and unused ids made by one uid." },
    { "limits", "max_in_flight", TYPE_COUNT, AT(max_in_flight), "4096", 1, 4096, true,
      "Unanswered operations of one connection; connections made later follow a change." },
};
/* clang-format on */

/* Sets the row's field, or leaves it as it is. */
static bool row_set(const struct option_row *row, const char *text, struct config *c)
{
    return value_set(row->type, text, row->min, row->max, (char *)c + row->offset);
}

static const struct option_row *row_find(const char *section, const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if ((!section || !strcmp(rows[i].section, section)) && !strcmp(rows[i].name, name))
            return &rows[i];
    return NULL;
}

/* `where`: "--workers", or "/etc/ruccl/ruccld.conf:3: workers". */
static int row_set_from(const struct option_row *row, const char *where, const char *text,
                        struct config *c, struct error *e)
{
    struct text allowed = { 0 };

    if (row_set(row, text, c))
        return 0;
    value_allowed(row->type, row->min, row->max, &allowed);
    return error_set(e, ERROR_INVALID_ARGUMENT, "%s: '%s' is not %s", where, text, allowed.s);
}

/* One reading of a file, and where the keys in it have been. */
struct reading {
    unsigned seen[ARRAY_SIZE(rows)]; /* the line, 0 for none */
    struct config *config;
};

static int unknown_key(const char *where, const struct keyfile_key *k, struct error *e)
{
    const struct option_row *elsewhere = row_find(NULL, k->name);

    if (elsewhere)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s'%s' belongs into section [%s]", where,
                         k->name, elsewhere->section);
    return error_set(e, ERROR_INVALID_ARGUMENT,
                     "%sunknown key '%s'; ruccld --print-config lists all there are", where,
                     k->name);
}

static int check_section(const struct keyfile_key *k, struct error *e)
{
    struct text known = { 0 };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        if (!strcmp(rows[i].section, k->section))
            return 0;
        if (i == 0 || strcmp(rows[i].section, rows[i - 1].section))
            text_add(&known, "%s[%s]", i ? ", " : "", rows[i].section);
    }
    return error_set(e, ERROR_INVALID_ARGUMENT, "%s:%u: there is no section [%s], only %s", k->path,
                     k->line, k->section, known.s);
}

static int take_key(void *user, const struct keyfile_key *k, struct error *e)
{
    struct reading *r = user;
    const struct option_row *row;
    struct text where = { 0 };

    if (!k->name)
        return check_section(k, e);
    row = row_find(k->section, k->name);
    text_add(&where, "%s:%u: ", k->path, k->line);
    if (!row)
        return unknown_key(where.s, k, e);
    if (r->seen[row - rows])
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s'%s' was set before, in line %u", where.s,
                         k->name, r->seen[row - rows]);
    r->seen[row - rows] = k->line;
    text_add(&where, "%s", k->name);
    return row_set_from(row, where.s, k->value, r->config, e);
}

/* The service manager's way to hand over a secret. Left empty where there is none. */
static int resolve_key(struct config *c, struct error *e)
{
    const char *directory = getenv("CREDENTIALS_DIRECTORY");
    int n;

    if (*c->cluster_key || !directory)
        return 0;
    n = snprintf(c->cluster_key, sizeof(c->cluster_key), "%s/cluster_key", directory);
    if (n >= (int)sizeof(c->cluster_key))
        return error_set(e, ERROR_INVALID_ARGUMENT, "$CREDENTIALS_DIRECTORY is too long: %s",
                         directory);
    if (access(c->cluster_key, F_OK) < 0)
        memset(c->cluster_key, 0, sizeof(c->cluster_key));
    return 0;
}

/* What an empty value stands for. */
static int resolve(struct config *c, struct error *e)
{
    /* of this program only: the machine's own id is nobody's business */
    static const sd_id128_t application =
        SD_ID128_MAKE(5b, 1f, 0c, 62, 9e, 37, 4d, 0a, 8c, 55, 60, e1, 7a, f2, 94, 0d);
    static sd_id128_t made_up; /* once, so that a reload finds the same */
    sd_id128_t id;

    if (!*c->socket) {
        int r = socket_path_default(c->socket, sizeof(c->socket), e);

        if (r < 0)
            return r;
    }
    if (!*c->node) {
        if (sd_id128_is_null(made_up))
            sd_id128_randomize(&made_up);
        if (sd_id128_get_machine_app_specific(application, &id) < 0)
            id = made_up;
        sd_id128_to_uuid_string(id, c->node);
    }
    return resolve_key(c, e);
}

enum argument {
    ARGUMENT_CONFIG = 256,
    ARGUMENT_SOCKET,
    ARGUMENT_LOG_LEVEL,
    ARGUMENT_WORKERS,
    ARGUMENT_SET,
    ARGUMENT_PRINT_CONFIG,
    ARGUMENT_VERSION,
    ARGUMENT_HELP,
};

static const struct option arguments[] = {
    { "config", required_argument, NULL, ARGUMENT_CONFIG },
    { "socket", required_argument, NULL, ARGUMENT_SOCKET },
    { "log-level", required_argument, NULL, ARGUMENT_LOG_LEVEL },
    { "workers", required_argument, NULL, ARGUMENT_WORKERS },
    { "set", required_argument, NULL, ARGUMENT_SET },
    { "print-config", no_argument, NULL, ARGUMENT_PRINT_CONFIG },
    { "version", no_argument, NULL, ARGUMENT_VERSION },
    { "help", no_argument, NULL, ARGUMENT_HELP },
    { NULL, 0, NULL, 0 },
};

static void print_help(FILE *out)
{
    fputs(
        "Usage: ruccld [OPTION]...\n"
        "The ruCCL daemon: executes collectives for the processes of this node, alone or with\n"
        "other nodes.\n"
        "\n"
        "  --config PATH      read PATH instead of " CONFIG_FILE "\n"
        "  --socket PATH      listen on PATH\n"
        "  --log-level LEVEL  error, warning, notice, info or debug\n"
        "  --workers N        threads that move bytes; 0: one per CPU\n"
        "  --set KEY=VALUE    set any key of the configuration file\n"
        "  --print-config     print the configuration file's keys and defaults\n"
        "  --version          print the version\n"
        "  --help             print this\n"
        "\n"
        "Signals: SIGTERM and SIGINT drain and stop, a second one stops at once; SIGHUP reads the\n"
        "configuration again.\n",
        out);
}

static int set_by_name(const char *assignment, struct config *c, struct error *e)
{
    const char *equals = strchr(assignment, '=');
    char name[32];

    if (!equals || (size_t)(equals - assignment) >= sizeof(name))
        return error_set(e, ERROR_INVALID_ARGUMENT, "--set %s: not of the form KEY=VALUE",
                         assignment);
    memcpy(name, assignment, (size_t)(equals - assignment));
    name[equals - assignment] = '\0';

    const struct option_row *row = row_find(NULL, name);
    if (!row)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "--set %s: unknown key '%s'; ruccld --print-config lists all there are",
                         assignment, name);
    return row_set_from(row, name, equals + 1, c, e);
}

/* Applies one argument; which of the printing ones it is, if any, lands in *print. */
static int apply_argument(int argument, const char *value, struct config *c, struct error *e)
{
    switch (argument) {
    case ARGUMENT_SOCKET:
        return row_set_from(row_find(NULL, "socket"), "--socket", value, c, e);
    case ARGUMENT_LOG_LEVEL:
        return row_set_from(row_find(NULL, "log_level"), "--log-level", value, c, e);
    case ARGUMENT_WORKERS:
        return row_set_from(row_find(NULL, "workers"), "--workers", value, c, e);
    case ARGUMENT_SET:
        return set_by_name(value, c, e);
    default:
        return 0;
    }
}

static bool print_argument(int argument)
{
    switch (argument) {
    case ARGUMENT_PRINT_CONFIG:
        config_print(stdout);
        return true;
    case ARGUMENT_VERSION:
        puts("ruccld " PROJECT_VERSION);
        return true;
    case ARGUMENT_HELP:
        print_help(stdout);
        return true;
    default:
        return false;
    }
}

static int next_argument(int argc, char *const *argv, struct error *e)
{
    int argument = getopt_long(argc, argv, ":", arguments, NULL);

    if (argument == ':')
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s needs a value; see ruccld --help",
                         argv[optind - 1]);
    if (argument == '?')
        return error_set(e, ERROR_INVALID_ARGUMENT, "unknown option '%s'; see ruccld --help",
                         argv[optind - 1]);
    if (argument < 0 && optind < argc)
        return error_set(e, ERROR_INVALID_ARGUMENT, "unexpected argument '%s'; see ruccld --help",
                         argv[optind]);
    return argument < 0 ? 0 : argument;
}

int config_parse(int argc, char *const *argv, struct config *ret, struct error *e)
{
    struct config c = { 0 };
    struct reading reading = { .config = &c };
    const char *path = NULL;
    int argument, r;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        row_set(&rows[i], rows[i].fallback, &c);

    /* twice: the file is named by an argument, and lies below all others */
    optind = 0;
    while ((argument = next_argument(argc, argv, e)) > 0) {
        if (print_argument(argument))
            return CONFIG_PRINTED;
        if (argument == ARGUMENT_CONFIG)
            path = optarg;
    }
    if (argument < 0)
        return argument;

    r = keyfile_read(path ? path : CONFIG_FILE, path != NULL, take_key, &reading, e);
    if (r < 0)
        return r;

    optind = 0;
    while ((argument = next_argument(argc, argv, e)) > 0) {
        r = apply_argument(argument, optarg, &c, e);
        if (r < 0)
            return r;
    }

    r = resolve(&c, e);
    if (r < 0)
        return r;
    *ret = c;
    return CONFIG_RUN;
}

static size_t row_bytes(const struct option_row *row)
{
    size_t bytes = value_text_bytes(row->type);

    return bytes ? bytes : sizeof(uint64_t);
}

int config_reload(int argc, char *const *argv, struct config *config, struct error *e)
{
    struct config fresh;
    int r = config_parse(argc, argv, &fresh, e);

    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char *now = (char *)config + rows[i].offset;
        const char *then = (const char *)&fresh + rows[i].offset;

        if (!memcmp(now, then, row_bytes(&rows[i])))
            continue;
        if (rows[i].live)
            memcpy(now, then, row_bytes(&rows[i]));
        else
            log_warning(NULL, "the new value of '%s' counts from the next start on", rows[i].name);
    }
    return 0;
}

/* Breaks the sentence into comment lines that inih and a terminal can hold. */
static void print_comment(FILE *out, const char *text)
{
    const size_t width = 96;

    while (strlen(text) > width) {
        size_t n = width;

        while (text[n] != ' ')
            n--;
        fprintf(out, "# %.*s\n", (int)n, text);
        text += n + 1;
    }
    fprintf(out, "# %s\n", text);
}

void config_print(FILE *out)
{
    const char *section = "";

    fputs("# ruccld's configuration. Every key is shown at its default.\n", out);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct option_row *row = &rows[i];
        struct text allowed = { 0 };

        if (strcmp(section, row->section))
            fprintf(out, "\n[%s]\n", row->section);
        section = row->section;

        value_allowed(row->type, row->min, row->max, &allowed);
        fputc('\n', out);
        print_comment(out, row->doc);
        fprintf(out, "# Takes %s.%s\n", allowed.s, row->live ? " Follows a reload." : "");
        fprintf(out, "#%s =%s%s\n", row->name, *row->fallback ? " " : "", row->fallback);
    }
}
