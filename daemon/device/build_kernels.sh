# build_kernels.sh REPORT COMMAND...: runs the command; what it says on standard error, which is how
# many registers every kernel takes, goes to the file, and to the terminal only if it fails.
report=$1
shift
"$@" 2> "$report" || {
    cat "$report" >&2
    exit 1
}
