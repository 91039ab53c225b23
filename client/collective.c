/* The collectives: each call in its two forms, as the arguments of one Post. */
#include "client/post.h"

int ruccl_all_reduce(struct ruccl_comm comm, const struct ruccl_tensor *in,
                     const struct ruccl_tensor *out, enum ruccl_op op)
{
    return post_and_wait(
        comm, &(struct call){ COLLECTIVE_ALL_REDUCE, .in = in, .out = out, .op = op }, NULL);
}

int ruccl_all_reduce_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                           const struct ruccl_tensor *out, enum ruccl_op op,
                           struct ruccl_work **ret)
{
    return post_call(comm, &(struct call){ COLLECTIVE_ALL_REDUCE, .in = in, .out = out, .op = op },
                     ret);
}

int ruccl_all_gather(struct ruccl_comm comm, const struct ruccl_tensor *in,
                     const struct ruccl_tensor *out)
{
    return post_and_wait(comm, &(struct call){ COLLECTIVE_ALL_GATHER, .in = in, .out = out }, NULL);
}

int ruccl_all_gather_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                           const struct ruccl_tensor *out, struct ruccl_work **ret)
{
    return post_call(comm, &(struct call){ COLLECTIVE_ALL_GATHER, .in = in, .out = out }, ret);
}

int ruccl_reduce_scatter(struct ruccl_comm comm, const struct ruccl_tensor *in,
                         const struct ruccl_tensor *out, enum ruccl_op op)
{
    return post_and_wait(
        comm, &(struct call){ COLLECTIVE_REDUCE_SCATTER, .in = in, .out = out, .op = op }, NULL);
}

int ruccl_reduce_scatter_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                               const struct ruccl_tensor *out, enum ruccl_op op,
                               struct ruccl_work **ret)
{
    return post_call(
        comm, &(struct call){ COLLECTIVE_REDUCE_SCATTER, .in = in, .out = out, .op = op }, ret);
}

int ruccl_broadcast(struct ruccl_comm comm, const struct ruccl_tensor *in,
                    const struct ruccl_tensor *out, uint32_t root)
{
    return post_and_wait(
        comm, &(struct call){ COLLECTIVE_BROADCAST, .in = in, .out = out, .root = root }, NULL);
}

int ruccl_broadcast_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                          const struct ruccl_tensor *out, uint32_t root, struct ruccl_work **ret)
{
    return post_call(
        comm, &(struct call){ COLLECTIVE_BROADCAST, .in = in, .out = out, .root = root }, ret);
}

int ruccl_reduce(struct ruccl_comm comm, const struct ruccl_tensor *in,
                 const struct ruccl_tensor *out, enum ruccl_op op, uint32_t root)
{
    return post_and_wait(
        comm, &(struct call){ COLLECTIVE_REDUCE, .in = in, .out = out, .op = op, .root = root },
        NULL);
}

int ruccl_reduce_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                       const struct ruccl_tensor *out, enum ruccl_op op, uint32_t root,
                       struct ruccl_work **ret)
{
    return post_call(
        comm, &(struct call){ COLLECTIVE_REDUCE, .in = in, .out = out, .op = op, .root = root },
        ret);
}

int ruccl_gather(struct ruccl_comm comm, const struct ruccl_tensor *in,
                 const struct ruccl_tensor *out, uint32_t root)
{
    return post_and_wait(
        comm, &(struct call){ COLLECTIVE_GATHER, .in = in, .out = out, .root = root }, NULL);
}

int ruccl_gather_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                       const struct ruccl_tensor *out, uint32_t root, struct ruccl_work **ret)
{
    return post_call(comm, &(struct call){ COLLECTIVE_GATHER, .in = in, .out = out, .root = root },
                     ret);
}

int ruccl_scatter(struct ruccl_comm comm, const struct ruccl_tensor *in,
                  const struct ruccl_tensor *out, uint32_t root)
{
    return post_and_wait(
        comm, &(struct call){ COLLECTIVE_SCATTER, .in = in, .out = out, .root = root }, NULL);
}

int ruccl_scatter_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                        const struct ruccl_tensor *out, uint32_t root, struct ruccl_work **ret)
{
    return post_call(comm, &(struct call){ COLLECTIVE_SCATTER, .in = in, .out = out, .root = root },
                     ret);
}

int ruccl_all_to_all(struct ruccl_comm comm, const struct ruccl_tensor *in,
                     const struct ruccl_tensor *out)
{
    return post_and_wait(comm, &(struct call){ COLLECTIVE_ALL_TO_ALL, .in = in, .out = out }, NULL);
}

int ruccl_all_to_all_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                           const struct ruccl_tensor *out, struct ruccl_work **ret)
{
    return post_call(comm, &(struct call){ COLLECTIVE_ALL_TO_ALL, .in = in, .out = out }, ret);
}

int ruccl_all_to_all_v(struct ruccl_comm comm, const struct ruccl_tensor *in,
                       const uint64_t *send_counts, const struct ruccl_tensor *out,
                       const uint64_t *expected_counts, uint64_t *ret_counts)
{
    return post_and_wait(comm,
                         &(struct call){ COLLECTIVE_ALL_TO_ALL_V, .in = in, .out = out,
                                         .send_counts = send_counts,
                                         .expected_counts = expected_counts },
                         ret_counts);
}

int ruccl_all_to_all_v_async(struct ruccl_comm comm, const struct ruccl_tensor *in,
                             const uint64_t *send_counts, const struct ruccl_tensor *out,
                             const uint64_t *expected_counts, struct ruccl_work **ret)
{
    return post_call(comm,
                     &(struct call){ COLLECTIVE_ALL_TO_ALL_V, .in = in, .out = out,
                                     .send_counts = send_counts,
                                     .expected_counts = expected_counts },
                     ret);
}

int ruccl_barrier(struct ruccl_comm comm)
{
    return post_and_wait(comm, &(struct call){ COLLECTIVE_BARRIER }, NULL);
}

int ruccl_barrier_async(struct ruccl_comm comm, struct ruccl_work **ret)
{
    return post_call(comm, &(struct call){ COLLECTIVE_BARRIER }, ret);
}

int ruccl_send(struct ruccl_comm comm, const struct ruccl_tensor *in, uint32_t to, uint32_t tag)
{
    return post_and_wait(comm, &(struct call){ COLLECTIVE_SEND, .in = in, .peer = to, .tag = tag },
                         NULL);
}

int ruccl_send_async(struct ruccl_comm comm, const struct ruccl_tensor *in, uint32_t to,
                     uint32_t tag, struct ruccl_work **ret)
{
    return post_call(comm, &(struct call){ COLLECTIVE_SEND, .in = in, .peer = to, .tag = tag },
                     ret);
}

int ruccl_recv(struct ruccl_comm comm, const struct ruccl_tensor *out, uint32_t from, uint32_t tag)
{
    return post_and_wait(
        comm, &(struct call){ COLLECTIVE_RECV, .out = out, .peer = from, .tag = tag }, NULL);
}

int ruccl_recv_async(struct ruccl_comm comm, const struct ruccl_tensor *out, uint32_t from,
                     uint32_t tag, struct ruccl_work **ret)
{
    return post_call(comm, &(struct call){ COLLECTIVE_RECV, .out = out, .peer = from, .tag = tag },
                     ret);
}
