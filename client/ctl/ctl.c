#include "client/ctl/ctl.h"

#include <getopt.h>
#include <string.h>
#include <sys/un.h>

#include "client/ctl/fetch.h"
#include "client/ctl/plan.h"
#include "client/ctl/print.h"
#include "shared/socket_path.h"
#include "shared/words.h"

static const char help[] =
    "Usage: rucclctl status [--json] [--socket PATH]\n"
    "       rucclctl plan --collective NAME [OPTION...]\n"
    "\n"
    "status shows what the ruCCL daemon of this node is doing: the daemons it is linked with, its\n"
    "sessions, its communicators, the operations they wait in, and which ranks have arrived there\n"
    "and which have not.\n"
    "\n"
    "  --json         print one JSON object\n"
    "  --socket PATH  ask the daemon at PATH; else at $RUCCL_SOCKET, or else at\n"
    "                 /run/ruccl/ruccld.sock (root), $XDG_RUNTIME_DIR/ruccl/ruccld.sock (others)\n"
    "  --help         print this\n"
    "  --version      print the version\n"
    "\n"
    "plan asks no daemon. It shows what an operation between nodes would take by every algorithm,\n"
    "beside what none is below, and the steps of one piece by the one that daemons would choose.\n"
    "\n"
    "  --collective NAME   all_reduce, all_gather, ...\n"
    "  --nodes N           nodes (2)\n"
    "  --ranks-per-node M  ranks on every node (1)\n"
    "  --bytes S           of one rank; of a pair for all_to_all (1M)\n"
    "  --dtype NAME        element type (f32)\n"
    "  --op NAME           of the reductions (sum)\n"
    "  --budget BYTES      as the operation's; else none\n"
    "  --algorithm NAME    as forced on the communicator\n"
    "  --node K            show the steps of this node (0)\n"
    "  --latency-us T      of a message between two nodes (120)\n"
    "  --message-us T      that a message keeps a link busy, beside its bytes (100)\n"
    "  --bandwidth-gbs G   of a node's link, each direction, 10^9 bytes/s (3)\n"
    "  --memory-gbs G      of a node's memory, read and written (8)\n"
    "  --tuning PATH       read these, chunks and rules from a tuning file, below the arguments\n"
    "\n"
    "Bytes are a number, alone or with " BYTE_UNITS_TEXT ".\n"
    "\n"
    "Exit status: 0; 1 if no daemon answers, or nothing can be planned so; 2 for arguments that\n"
    "mean nothing.\n";

struct arguments {
    bool help, version, json;
    const char *socket, *command;
};

static int usage(FILE *err, const char *problem, const char *argument)
{
    fprintf(err, "rucclctl: %s%s; see rucclctl --help\n", problem, argument);
    return CTL_USAGE;
}

static int parse_arguments(int argc, char **argv, FILE *err, struct arguments *ret)
{
    static const struct option options[] = {
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, 'v' },
        { "json", no_argument, NULL, 'j' },
        { "socket", required_argument, NULL, 's' },
        { 0 },
    };
    int option;

    opterr = 0;
    optind = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        switch (option) {
        case 'h':
            ret->help = true;
            break;
        case 'v':
            ret->version = true;
            break;
        case 'j':
            ret->json = true;
            break;
        case 's':
            ret->socket = optarg;
            break;
        case ':':
            return usage(err, "a value is missing behind ", argv[optind - 1]);
        default:
            return usage(err, "unknown argument ", argv[optind - 1]);
        }
    }
    if (ret->help || ret->version)
        return 0;
    if (optind == argc)
        return usage(err, "a command is missing", "");
    ret->command = argv[optind++];
    if (strcmp(ret->command, "status"))
        return usage(err, "unknown command ", ret->command);
    if (optind < argc)
        return usage(err, "unknown argument ", argv[optind]);
    return 0;
}

static int show_status(const struct arguments *a, FILE *out, struct error *e)
{
    _cleanup_(status_fini) struct status status = { 0 };
    char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
    int r = 0;

    if (!a->socket)
        r = socket_path_default(path, sizeof(path), e);
    if (r < 0)
        return r;

    r = fetch_status(a->socket ? a->socket : path, DAEMON_ANSWERS_US, &status, e);
    if (r < 0)
        return r;
    if (!a->json) {
        print_text(&status, out);
        return 0;
    }
    return print_json(&status, out, e);
}

static int show_plan(const struct plan_options *o, FILE *out, struct error *e)
{
    struct plan_report report;
    int r = plan_report(o, &report, e);

    if (r == 0 && o->json)
        r = plan_print_json(&report, out, e);
    else if (r == 0)
        plan_print_text(&report, out);
    plan_report_fini(&report);
    return r;
}

static bool asks_for_help(int argc, char **argv)
{
    return argc == 3 && !strcmp(argv[2], "--help");
}

int ctl_run(int argc, char **argv, FILE *out, FILE *err)
{
    const bool plan = argc > 1 && !strcmp(argv[1], "plan") && !asks_for_help(argc, argv);
    struct plan_options options;
    struct arguments a = { 0 };
    struct error e = { 0 };
    int r;

    if (plan && plan_parse(argc - 1, argv + 1, &options, &e) < 0)
        return usage(err, e.text, "");
    r = plan ? 0 : parse_arguments(argc, argv, err, &a);
    if (r > 0)
        return r;

    if (plan)
        r = show_plan(&options, out, &e);
    else if (a.help)
        fputs(help, out);
    else if (a.version)
        fputs("rucclctl " PROJECT_VERSION "\n", out);
    else
        r = show_status(&a, out, &e);
    if (r == 0 && (fflush(out) != 0 || ferror(out)))
        r = error_set(&e, ERROR_SYSTEM, "cannot write the output");
    if (r == 0)
        return 0;
    fprintf(err, "rucclctl: %s\n", e.text);
    return CTL_FAILED;
}
