/*
 * Gloo over TCP, the transport that Debian builds, on $BENCH_ADDRESS or else 127.0.0.1. Settings
 * are algorithms: ring, bcube, ring_chunked and halving_doubling for all_reduce, halving_doubling
 * for reduce_scatter, one for each of the others. Ranks find each other through files in
 * $BENCH_STORE.
 */
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoallv.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench.h"

namespace
{

struct rank {
    const bench_options *o;
    bench_buffers buffers;
    std::shared_ptr<gloo::rendezvous::Context> context;
    uint32_t tag;

    std::shared_ptr<gloo::Algorithm> algorithm; /* of the older kind, bound to one size */
    std::function<void()> run;
};

template <typename T> void sum(void *out, const void *a, const void *b, size_t n)
{
    gloo::sum<T>(out, a, b, n);
}

template <typename T> void prepare_all_reduce(rank &k, size_t n)
{
    const std::string setting = k.o->setting;
    std::vector<T *> data{ static_cast<T *>(k.buffers.out) };
    auto ring = gloo::AllreduceOptions::Algorithm::RING;
    auto bcube = gloo::AllreduceOptions::Algorithm::BCUBE;

    if (setting == "ring_chunked")
        k.algorithm =
            std::make_shared<gloo::AllreduceRingChunked<T>>(k.context, data, static_cast<int>(n));
    else if (setting == "halving_doubling")
        k.algorithm = std::make_shared<gloo::AllreduceHalvingDoubling<T>>(k.context, data,
                                                                          static_cast<int>(n));
    if (k.algorithm) {
        k.run = [&k] { k.algorithm->run(); };
        return;
    }
    k.run = [&k, n, algorithm = setting == "bcube" ? bcube : ring] {
        gloo::AllreduceOptions options(k.context);

        options.setAlgorithm(algorithm);
        options.setOutput(static_cast<T *>(k.buffers.out), n);
        options.setReduceFunction(sum<T>);
        options.setTag(k.tag++);
        gloo::allreduce(options);
    };
}

/* The only one there is works in place, and leaves the block at the start: a copy keeps the input.
 */
template <typename T> void prepare_reduce_scatter(rank &k, size_t n)
{
    const size_t count = n * k.o->nranks;
    T *in = static_cast<T *>(k.buffers.in), *out = static_cast<T *>(k.buffers.out);

    k.algorithm = std::make_shared<gloo::ReduceScatterHalvingDoubling<T>>(
        k.context, std::vector<T *>{ in }, static_cast<int>(count),
        std::vector<int>(k.o->nranks, static_cast<int>(n)));
    k.run = [&k, in, out, n] {
        k.algorithm->run();
        std::copy_n(in, n, out);
    };
}

template <typename T> void prepare_all_gather(rank &k, size_t n)
{
    k.run = [&k, n] {
        gloo::AllgatherOptions options(k.context);

        options.setInput(static_cast<T *>(k.buffers.in), n);
        options.setOutput(static_cast<T *>(k.buffers.out), n * k.o->nranks);
        options.setTag(k.tag++);
        gloo::allgather(options);
    };
}

template <typename T> void prepare_broadcast(rank &k, size_t n)
{
    k.run = [&k, n] {
        gloo::BroadcastOptions options(k.context);

        options.setOutput(static_cast<T *>(k.buffers.out), n);
        options.setRoot(0);
        options.setTag(k.tag++);
        gloo::broadcast(options);
    };
}

template <typename T> void prepare_all_to_all_v(rank &k, size_t n)
{
    k.run = [&k, n] {
        const std::vector<int64_t> counts(k.o->nranks, static_cast<int64_t>(n));
        gloo::AlltoallvOptions options(k.context);

        options.setInput(static_cast<T *>(k.buffers.in), counts);
        options.setOutput(static_cast<T *>(k.buffers.out), counts);
        options.setTag(k.tag++);
        gloo::alltoallv(options);
    };
}

template <typename T> void prepare_collective(rank &k, size_t n)
{
    k.algorithm.reset();
    switch (k.o->collective) {
    case BENCH_ALL_REDUCE:
        return prepare_all_reduce<T>(k, n);
    case BENCH_ALL_GATHER:
        return prepare_all_gather<T>(k, n);
    case BENCH_REDUCE_SCATTER:
        return prepare_reduce_scatter<T>(k, n);
    case BENCH_BROADCAST:
        return prepare_broadcast<T>(k, n);
    case BENCH_ALL_TO_ALL_V:
        return prepare_all_to_all_v<T>(k, n);
    }
}

void prepare(void *context, const bench_case *c)
{
    rank &k = *static_cast<rank *>(context);

    switch (k.o->dtype) {
    case BENCH_F32:
        return prepare_collective<float>(k, c->n);
    case BENCH_I64:
        return prepare_collective<int64_t>(k, c->n);
    case BENCH_F16:
    case BENCH_BF16: /* to be moved only: main() sees to it */
        return prepare_collective<gloo::float16>(k, c->n);
    }
}

void run(void *context)
{
    static_cast<rank *>(context)->run();
}

const bench_contestant contestant = { prepare, run, nullptr };

void rank_main(const bench_options *o, bench_board *board, uint32_t number)
{
    rank k = {};

    k.o = o;
    k.buffers.rank = number;
    k.buffers.in = bench_alloc(bench_buffer_bytes(o));
    k.buffers.out = bench_in_place(o) ? k.buffers.in : bench_alloc(bench_buffer_bytes(o));
    try {
        const char *address = std::getenv("BENCH_ADDRESS");
        gloo::rendezvous::FileStore store(std::getenv("BENCH_STORE"));
        auto device = gloo::transport::tcp::CreateDevice(
            gloo::transport::tcp::attr(address ? address : "127.0.0.1"));

        k.context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(number),
                                                                static_cast<int>(o->nranks));
        k.context->connectFullMesh(store, device);
        bench_loop(board, o, number, o->nranks, &k.buffers, 1, &contestant, &k);
    } catch (const std::exception &e) {
        bench_fail("%s", e.what());
    }
}

} // namespace

int main(int argc, char **argv)
{
    bench_options o;

    bench_parse(argc, argv, &o);
    if (!std::getenv("BENCH_STORE"))
        bench_fail("wants BENCH_STORE");
    if (o.dtype == BENCH_BF16 &&
        (o.collective == BENCH_ALL_REDUCE || o.collective == BENCH_REDUCE_SCATTER))
        return BENCH_UNSUPPORTED;
    return bench_fork(&o, bench_board_new(std::getenv("BENCH_BOARD")), rank_main);
}
