#include "daemon/config.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <systemd/sd-id128.h>

#include "daemon/keyfile.h"
#include "daemon/server/address.h"
#include "shared/socket_path.h"

enum option_type {
    TYPE_PATH,
    TYPE_UUID,
    TYPE_FILE,    /* an absolute path */
    TYPE_ADDRESS, /* of a listener */
    TYPE_NAMES,   /* letters, digits and what stands between names */
    TYPE_PORTS,
    TYPE_MODE,
    TYPE_COUNT,
    TYPE_BYTES,
    TYPE_DURATION, /* kept in microseconds */
    TYPE_LEVEL,
    TYPE_TARGET,
    TYPE_SWITCH,
};

struct option_row {
    const char *section, *name;
    enum option_type type;
    size_t offset;
    const char *fallback;
    uint64_t min, max; /* numbers only */
    bool live;         /* taken over by a reload */
    const char *doc;
};

#define AT(field) offsetof(struct config, field)
#define KIB       1024ull
#define TIB       (KIB * KIB * KIB * KIB)
#define MS        1000ull
#define HOUR      (3600 * 1000 * MS)

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
    { "daemon", "rings", TYPE_SWITCH, AT(rings), "yes", 0, 0, false,
      "Requests and replies by shared memory, which is quicker; no: all of them by the socket." },
    { "daemon", "spin", TYPE_DURATION, AT(spin_us), "200us", 0, 10 * MS, false,
      "How long the daemon, and a waiting client, look for the next message before they sleep." },
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
      "Bytes of all regions of one uid, whether backed by memory or not. 0: the node's memory." },
    { "limits", "max_fds", TYPE_COUNT, AT(max_fds), "16384", 2, 1 << 20, true,
      "File descriptors held for one uid: two per connection." },
    { "limits", "max_communicators", TYPE_COUNT, AT(max_communicators), "4096", 1, 1 << 20, true,
      "Communicators and unused ids made by one uid." },
    { "limits", "max_in_flight", TYPE_COUNT, AT(max_in_flight), "4096", 1, 4096, true,
      "Unanswered operations of one connection; connections made later follow a change." },
};
/* clang-format on */

static const struct word levels[] = {
    { "error", LOG_LEVEL_ERROR }, { "warning", LOG_LEVEL_WARNING }, { "notice", LOG_LEVEL_NOTICE },
    { "info", LOG_LEVEL_INFO },   { "debug", LOG_LEVEL_DEBUG },     { NULL, 0 },
};

static const struct word targets[] = {
    { "auto", LOG_TARGET_AUTO },
    { "stderr", LOG_TARGET_STDERR },
    { "journal", LOG_TARGET_JOURNAL },
    { NULL, 0 },
};

static const struct word switches[] = { { "no", 0 }, { "yes", 1 }, { NULL, 0 } };

static const struct word time_units[] = {
    { "us", 1 },   { "ms", MS }, { "s", 1000 * MS }, { "min", 60 * 1000 * MS },
    { "h", HOUR }, { NULL, 0 },
};

static const struct word no_units[] = { { "", 1 }, { NULL, 0 } };

static bool parse_uuid(const char *text, char *ret)
{
    sd_id128_t id;

    if (*text && sd_id128_from_string(text, &id) < 0)
        return false;
    memset(ret, 0, CONFIG_NODE_BYTES);
    if (*text)
        sd_id128_to_uuid_string(id, ret);
    return true;
}

static size_t text_bytes(enum option_type type)
{
    switch (type) {
    case TYPE_PATH:
        return CONFIG_PATH_BYTES;
    case TYPE_UUID:
        return CONFIG_NODE_BYTES;
    case TYPE_FILE:
        return CONFIG_FILE_BYTES;
    case TYPE_ADDRESS:
        return CONFIG_ADDRESS_BYTES;
    case TYPE_NAMES:
    case TYPE_PORTS:
        return CONFIG_TEXT_BYTES;
    default:
        return 0; /* a number */
    }
}

static bool set_text(enum option_type type, const char *text, char *ret)
{
    size_t size = text_bytes(type);

    if (strlen(text) >= size)
        return false;
    memset(ret, 0, size); /* for comparisons of all of it */
    strcpy(ret, text);
    return true;
}

static bool is_names(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "_-.:,/@";

    return !text[strspn(text, letters)];
}

static bool is_ports(const char *text)
{
    unsigned first, last;
    int end = -1;

    return sscanf(text, "%5u-%5u%n", &first, &last, &end) == 2 && end == (int)strlen(text) &&
           first > 0 && first <= last && last <= UINT16_MAX;
}

static bool is_address(const char *text)
{
    struct address a;

    return address_parse(text, &a, NULL) == 0;
}

/* Sets the row's field, or leaves it as it is. */
static bool row_set(const struct option_row *row, const char *text, struct config *c)
{
    void *field = (char *)c + row->offset;
    uint64_t value = 0;
    bool ok = false;

    switch (row->type) {
    case TYPE_PATH:
        return set_text(row->type, text, field);
    case TYPE_UUID:
        return parse_uuid(text, field);
    case TYPE_FILE:
        return (!*text || *text == '/') && set_text(row->type, text, field);
    case TYPE_ADDRESS:
        return (!*text || is_address(text)) && set_text(row->type, text, field);
    case TYPE_NAMES:
        return is_names(text) && set_text(row->type, text, field);
    case TYPE_PORTS:
        return (!*text || is_ports(text)) && set_text(row->type, text, field);
    case TYPE_LEVEL:
        ok = word_find(levels, text, &value);
        break;
    case TYPE_TARGET:
        ok = word_find(targets, text, &value);
        break;
    case TYPE_SWITCH:
        ok = word_find(switches, text, &value);
        break;
    case TYPE_MODE:
        ok = number_parse(text, 8, no_units, &value);
        break;
    case TYPE_COUNT:
        ok = number_parse(text, 10, no_units, &value);
        break;
    case TYPE_BYTES:
        ok = number_parse(text, 10, byte_units, &value);
        break;
    case TYPE_DURATION:
        ok = number_parse(text, 10, time_units, &value);
        break;
    }
    if (ok && row->max)
        ok = value >= row->min && value <= row->max;
    if (ok)
        *(uint64_t *)field = value;
    return ok;
}

static void row_allowed(const struct option_row *row, struct text *t)
{
    switch (row->type) {
    case TYPE_PATH:
        text_add(t, "a path of at most %u bytes", CONFIG_PATH_BYTES - 1);
        break;
    case TYPE_UUID:
        text_add(t, "a UUID, or nothing");
        break;
    case TYPE_FILE:
        text_add(t, "an absolute path of at most %u bytes, or nothing", CONFIG_FILE_BYTES - 1);
        break;
    case TYPE_ADDRESS:
        text_add(t, "host:port or [v6]:port, of at most %u bytes, or nothing",
                 CONFIG_ADDRESS_BYTES - 1);
        break;
    case TYPE_NAMES:
        text_add(t, "names of at most %u bytes in all", CONFIG_TEXT_BYTES - 1);
        break;
    case TYPE_PORTS:
        text_add(t, "a range of ports such as 41000-41100, or nothing");
        break;
    case TYPE_LEVEL:
        text_add(t, "error, warning, notice, info or debug");
        break;
    case TYPE_TARGET:
        text_add(t, "auto, stderr or journal");
        break;
    case TYPE_SWITCH:
        text_add(t, "yes or no");
        break;
    case TYPE_MODE:
        text_add(t, "an octal file mode from 0 to 0777");
        break;
    case TYPE_COUNT:
        text_add(t, "a number from %" PRIu64 " to %" PRIu64, row->min, row->max);
        break;
    case TYPE_BYTES:
        text_add(t, "bytes from %" PRIu64 " to %" PRIu64 ", with K, M, G, T, KiB, MiB, GiB or TiB",
                 row->min, row->max);
        break;
    case TYPE_DURATION:
        text_add(t,
                 row->max < HOUR ? "a time from %llums to %llums, in us, ms, s, min or h"
                                 : "a time from %llums to %lluh, in us, ms, s, min or h",
                 row->min / MS, row->max < HOUR ? row->max / MS : row->max / HOUR);
        break;
    }
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
    row_allowed(row, &allowed);
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

static int take_key(void *user, const struct keyfile_key *k, struct error *e)
{
    struct reading *r = user;
    const struct option_row *row = row_find(k->section, k->name);
    struct text where = { 0 };

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
    size_t bytes = text_bytes(row->type);

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

        row_allowed(row, &allowed);
        fputc('\n', out);
        print_comment(out, row->doc);
        fprintf(out, "# Takes %s.%s\n", allowed.s, row->live ? " Follows a reload." : "");
        fprintf(out, "#%s =%s%s\n", row->name, *row->fallback ? " " : "", row->fallback);
    }
}
