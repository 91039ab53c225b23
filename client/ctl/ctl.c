#include "client/ctl/ctl.h"

#include <getopt.h>
#include <string.h>
#include <sys/un.h>

#include "client/ctl/fetch.h"
#include "client/ctl/print.h"
#include "shared/socket_path.h"

#define ANSWER_TIMEOUT_US 5000000

static const char help[] =
    "Usage: rucclctl status [--json] [--socket PATH]\n"
    "\n"
    "Shows what the ruCCL daemon of this node is doing: its sessions, its communicators, the\n"
    "operations they wait in, and which ranks have arrived there and which have not.\n"
    "\n"
    "  --json         print one JSON object\n"
    "  --socket PATH  ask the daemon at PATH; else at $RUCCL_SOCKET, or else at\n"
    "                 /run/ruccl/ruccld.sock (root), $XDG_RUNTIME_DIR/ruccl/ruccld.sock (others)\n"
    "  --help         print this\n"
    "  --version      print the version\n"
    "\n"
    "Exit status: 0; 1 if no daemon answers; 2 for arguments that mean nothing.\n";

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

    r = fetch_status(a->socket ? a->socket : path, ANSWER_TIMEOUT_US, &status, e);
    if (r < 0)
        return r;
    if (!a->json) {
        print_text(&status, out);
        return 0;
    }
    return print_json(&status, out, e);
}

int ctl_run(int argc, char **argv, FILE *out, FILE *err)
{
    struct arguments a = { 0 };
    struct error e = { 0 };

    int r = parse_arguments(argc, argv, err, &a);
    if (r > 0)
        return r;

    if (a.help)
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
